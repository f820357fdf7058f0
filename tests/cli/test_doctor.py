"""`daisychain doctor`: what it prints and writes, with a fake agent."""

import argparse
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daisychain.cli import doctor
from daisychain.cli.surface import Surface
from daisychain.config import Settings, locate
from daisychain.errors import DaisyError
from daisychain.facts import Address, Condition, Device, Nic, Node, Verdict, Versions
from daisychain.link.messages import Examine, Examined, ListNics, Nics

OK = Verdict(level="ok", check="nic", reason="eth0 (wired, 10.0.0.1)", node="desk")
DESK = Node(
    id="a" * 64, name="desk", role="head", state="ready", address="10.0.0.1", port=1, nic="eth0", nic_verdict=OK,
    device=Device(cpu="x", cores_physical=2, cores_logical=2, memory_bytes=1),
    versions=Versions(daisychain="1", python="3.11", torch="2.9.0", os="Debian", os_family="linux"),
)  # fmt: skip
OLD = msgspec.structs.replace(DESK, id="b" * 64, name="old", address="10.0.0.2")
BLOCKED = Verdict(
    level="refuse", check="path", reason="old (10.0.0.2) can't reach desk (10.0.0.1): no answer",
    remedy="On desk let old in: sudo ufw allow from 10.0.0.2", node="desk",
)  # fmt: skip
NOW = Condition(clock_s=1.0)
WELL = Examined(verdicts=(OK,), nodes=(DESK,), conditions=(NOW,))
ILL = Examined(
    verdicts=(OK, BLOCKED), nodes=(DESK, OLD), conditions=(NOW, None),
    paths=(("desk", "old", ""), ("old", "desk", "no answer")),
)  # fmt: skip
NICS = Nics(
    nics=(Nic(name="eth0", kind="ethernet", addresses=(Address(ip="10.0.0.1", prefix=24),)),), verdicts=(OK,),
    chosen="eth0",
)  # fmt: skip


class FakeAgent:
    def __init__(self, found: Examined) -> None:
        self.found, self.asked = found, [Examine()]

    async def expect(self, message: Any, *_: Any) -> Any:
        if isinstance(message, ListNics):
            return NICS
        self.asked.append(message)
        return self.found

    async def __aenter__(self) -> "FakeAgent":
        return self

    async def __aexit__(self, *_: object) -> None: ...


async def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Examined, as_json: bool = False, **words: str
) -> tuple[int, FakeAgent]:
    agent = FakeAgent(found)

    async def connect(*_: Any) -> FakeAgent:
        return agent

    monkeypatch.setattr(doctor, "connect_or_start", connect)
    paths = locate({"DAISYCHAIN_HOME": str(tmp_path)})
    paths.state.mkdir()
    paths.agent_log.write_text("connected to old at 10.0.0.2\n", encoding="utf-8")
    surface = Surface(as_json, paths, Settings())
    return await doctor.command(argparse.Namespace(**{"peer": "", "bundle": "", **words}), surface), agent


async def test_a_machine_that_is_well(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    code, agent = await run(tmp_path, monkeypatch, WELL, peer="old:5000")
    assert code == 0
    assert (agent.asked[-1].host, agent.asked[-1].port) == ("old", 5000)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "✓ ok     nic       desk: eth0 (wired, 10.0.0.1)"
    assert said[-1].startswith("* ✓ eth0")
    assert len(said) == 3


async def test_a_chain_with_a_firewall(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    code, _ = await run(tmp_path, monkeypatch, ILL)
    assert code == 4
    said = capsys.readouterr().out
    assert "✗ refuse path      old (10.0.0.2) can't reach desk (10.0.0.1): no answer. On desk let old in" in said
    rows = [line.split() for line in said.splitlines()]
    assert ["from", "/", "to", "desk", "old"] in rows
    assert ["desk", "-", "✓"] in rows
    assert ["old", "✗", "-"] in rows


async def test_programs_get_one_event(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    await run(tmp_path, monkeypatch, ILL, as_json=True)
    (line,) = capsys.readouterr().out.splitlines()
    event = json.loads(line)
    assert event["event"] == "doctor"
    assert [v["level"] for v in event["verdicts"]] == ["ok", "refuse"]
    assert [n["name"] for n in event["nodes"]] == ["desk", "old"]
    assert event["nodes"][1]["condition"] is None
    assert event["paths"] == [
        {"from": "desk", "to": "old", "reason": ""}, {"from": "old", "to": "desk", "reason": "no answer"}
    ]  # fmt: skip
    assert event["nics"][0]["verdict"]["level"] == "ok"


async def test_a_bundle_has_everything_but_addresses_and_names(tmp_path: Path, monkeypatch: Any) -> None:
    file = tmp_path / "report.json"
    await run(tmp_path, monkeypatch, ILL, bundle=str(file))
    text = file.read_text(encoding="utf-8")
    assert not [word for word in ("10.0.0", "desk", '"old"', "a" * 12) if word in text]
    bundle = json.loads(text)
    assert bundle["log"] == ["connected to name-2 at private-1.2"]
    assert (
        bundle["doctor"]["verdicts"][1]["reason"] == "name-2 (private-1.2) can't reach name-1 (private-1.1): no answer"
    )


async def test_a_bundle_that_can_not_be_written_is_said(tmp_path: Path, monkeypatch: Any) -> None:
    with pytest.raises(DaisyError, match="can't write") as caught:
        await run(tmp_path, monkeypatch, WELL, bundle="/proc/nowhere/x.json")
    assert "--bundle" in caught.value.remedy
