"""What an agent does as a worker, without a network."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from daisychain.agent.headship import Headship
from daisychain.agent.membership import Membership
from daisychain.config import Settings
from daisychain.errors import PreflightError
from daisychain.facts import Device, Node, Verdict, Versions
from daisychain.link.messages import BeWorker, MakeInvite
from daisychain.trust.identity import Identity
from daisychain.trust.known import KnownNodes

NODE = Node(
    id="id-old", name="old", role="head", state="ready", address="10.0.0.2", port=1, nic="eth0",
    nic_verdict=Verdict(level="ok", check="nic", reason="wired"),
    device=Device(cpu="x", cores_physical=2, cores_logical=2, memory_bytes=1),
    versions=Versions(daisychain="1", python="3.11", torch="2.9.0", os="Debian", os_family="linux"),
)  # fmt: skip


class FakeAgent:
    """As much of an agent as its parts ask for; what they start runs on."""

    def __init__(self, folder: Path, own: Node = NODE, **settings: Any) -> None:
        self.own, self.settings = own, Settings(**settings)
        self.identity = Identity.load_or_create(folder, own.name)
        self.headship = SimpleNamespace(active_run=False)
        self.node_side = SimpleNamespace(state=lambda: None)
        self.now = 0.0
        self.tasks: list[Any] = []

    def clock(self) -> float:
        return self.now

    def changed(self) -> None:
        pass

    def spawn(self, work: Any) -> None:
        raise AssertionError("nothing is to be started")


def membership(agent: FakeAgent, folder: Path) -> Membership:
    return Membership(agent, KnownNodes(folder / "nodes.json"))  # type: ignore[arg-type]


# --- Windows ---------------------------------------------------------------------------------------


WINDOWS = msgspec.structs.replace(
    NODE, versions=msgspec.structs.replace(NODE.versions, os="Windows 11", os_family="windows")
)


@pytest.mark.parametrize("wish", [BeWorker(), BeWorker(host="head"), BeWorker(host="head", token="x")])
async def test_on_windows_joining_is_refused_in_a_sentence(tmp_path: Path, wish: BeWorker) -> None:
    worker = membership(FakeAgent(tmp_path, WINDOWS), tmp_path)
    with pytest.raises(PreflightError, match="old runs Windows") as caught:
        await worker.become(wish)
    assert "WSL" in caught.value.remedy
    assert not worker.active


def test_on_windows_nobody_is_invited(tmp_path: Path) -> None:
    agent: Any = FakeAgent(tmp_path, WINDOWS)
    with pytest.raises(PreflightError, match="old runs Windows"):
        Headship(agent, KnownNodes(tmp_path / "nodes.json")).invite(MakeInvite())
