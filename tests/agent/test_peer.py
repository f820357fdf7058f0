"""The way to an agent on another machine, over loopback; and what each end of it means."""

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any, get_args

import pytest

from daisychain.agent import peer
from daisychain.agent.peer import Outcome, Reached, judge_peer, reach
from daisychain.facts import Device, Node, Verdict, Versions
from daisychain.trust.identity import Identity
from daisychain.trust.tls import server_context

HERE = "127.0.0.1"
OWN = Node(
    id="id", name="desk", role="head", state="ready", address="10.0.0.1", port=1, nic="eth0",
    nic_verdict=Verdict(level="ok", check="nic", reason="wired"),
    device=Device(cpu="x", cores_physical=2, cores_logical=2, memory_bytes=1),
    versions=Versions(daisychain="1", python="3.11", torch="2.9.0", os="Debian", os_family="linux"),
)  # fmt: skip


async def port_of(answer: Any, context: ssl.SSLContext | None = None) -> tuple[asyncio.Server, int]:
    server = await asyncio.start_server(answer, HERE, 0, ssl=context)
    return server, int(server.sockets[0].getsockname()[1])


async def test_an_agent_answers_with_its_identity(tmp_path: Path) -> None:
    identity = Identity.load_or_create(tmp_path, "old")

    async def agent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server, port = await port_of(agent, server_context(identity))
    try:
        assert await reach(HERE, port, HERE) == Reached("answers", HERE, identity.id)
    finally:
        server.close()
        await asyncio.sleep(0.05)


async def test_nobody_listens() -> None:
    with socket.create_server((HERE, 0)) as free:
        port = free.getsockname()[1]
    assert (await reach(HERE, port, HERE)).outcome == "refused"


async def test_something_else_listens() -> None:
    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server, port = await port_of(web)
    try:
        assert (await reach(HERE, port, HERE)).outcome == "stranger"
    finally:
        server.close()
        await asyncio.sleep(0.05)


async def test_larger_packets_get_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "ANSWER_S", 0.2)
    over = asyncio.Event()

    async def hole(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    server, port = await port_of(hole)
    try:
        assert (await reach(HERE, port, HERE)).outcome == "stuck"
    finally:
        over.set()
        server.close()
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("stands_for", "outcome"),
    [
        ([(socket.AF_INET, ("127.0.1.1", 1))], "itself"),
        ([(socket.AF_INET6, ("fd00::1", 1, 0, 0))], "v6 only"),
        (socket.gaierror(-2, "Name or service not known"), "no name"),
        (UnicodeError("label too long"), "no name"),
    ],
)
async def test_what_a_name_stands_for(monkeypatch: pytest.MonkeyPatch, stands_for: Any, outcome: str) -> None:
    async def look_up(*_: Any, **__: Any) -> Any:
        if isinstance(stands_for, Exception):
            raise stands_for
        return [(family, socket.SOCK_STREAM, 6, "", where) for family, where in stands_for]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
    assert (await reach("old", 1, "10.0.0.1")).outcome == outcome


WORDS = {
    "answers": ("desk reaches an agent on old (10.0.0.2), port 47632, id abc", ""),
    "no name": ("no machine called old", "Type its address"),
    "itself": ("the name old stands for 10.0.0.2, which is desk itself", "Type its address"),
    "v6 only": ("only an IPv6 address", "an IPv4 address"),
    "refused": ("nothing listens on its port 47632", "Start daisychain on old"),
    "silent": ("desk (10.0.0.1) gets no answer from old (10.0.0.2)", "sudo ufw allow from 10.0.0.1"),
    "unreachable": ("no way to old (10.0.0.2): why", "one network"),
    "stuck": ("larger packets don't arrive", "mtu 1500"),
    "stranger": ("is no DaisyChain: why", "--peer old:PORT"),
}


def test_the_table_has_every_outcome() -> None:
    assert set(WORDS) == set(get_args(Outcome))


@pytest.mark.parametrize("outcome", WORDS)
def test_each_outcome_names_the_machine_the_cause_and_the_remedy(outcome: Any) -> None:
    verdict = judge_peer(OWN, "old", 47632, Reached(outcome, "10.0.0.2", "abcdef", "why"))
    reason, remedy = WORDS[outcome]
    assert (verdict.check, verdict.node) == ("peer", "desk")
    assert verdict.level == ("ok" if outcome == "answers" else "refuse")
    assert reason in verdict.reason
    assert remedy in verdict.remedy
    assert bool(verdict.remedy) == (verdict.level != "ok")
