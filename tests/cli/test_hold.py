"""`daisychain pause` and `resume`: a head's run, a worker's machine."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from daisychain.cli import hold
from daisychain.cli.parser import parse
from daisychain.cli.surface import Surface
from daisychain.config import Settings, locate
from daisychain.link.messages import Done, Lend, Message, PauseRun, Ping, Pong


class FakeAgent:
    def __init__(self, role: str) -> None:
        self.role = role
        self.asked: list[Message] = []

    async def __aenter__(self) -> "FakeAgent":
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def ask(self, message: Message) -> Message:
        self.asked.append(message)
        return Done()

    async def expect(self, message: Message, kind: type[Any]) -> Any:
        assert (message, kind) == (Ping(), Pong)
        return Pong(pid=1, version="1", role=self.role)


def connecting(agent: FakeAgent) -> Callable[..., Awaitable[FakeAgent]]:
    async def connect(*_: object) -> FakeAgent:
        return agent

    return connect


@pytest.mark.parametrize(
    ("role", "words", "asked", "event"),
    [
        ("head", ["pause"], PauseRun(paused=True), "paused"),
        ("head", ["resume"], PauseRun(paused=False), "resumed"),
        ("head", ["pause", "--here"], Lend(lent=True), "lent"),
        ("head", ["resume", "--here"], Lend(lent=False), "given_back"),
        ("worker", ["pause"], Lend(lent=True), "lent"),
        ("worker", ["resume"], Lend(lent=False), "given_back"),
    ],
)
async def test_a_head_holds_its_run_and_a_worker_its_machine(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    role: str,
    words: list[str],
    asked: Message,
    event: str,
) -> None:
    agent = FakeAgent(role)
    monkeypatch.setattr(hold, "connect_local", connecting(agent))
    for as_json in (True, False):
        assert await hold.command(parse(words), Surface(as_json, locate(), Settings())) == 0
    told, said = capsys.readouterr().out.splitlines()
    assert agent.asked == [asked, asked]
    assert told == f'{{"v": 1, "event": "{event}"}}'
    assert ("--here" in said) == (words == ["pause", "--here"])
