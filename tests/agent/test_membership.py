"""What an agent does as a worker, without a network."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from daisychain.agent.headship import Headship
from daisychain.agent.membership import Membership
from daisychain.config import Settings
from daisychain.discovery import tailscale
from daisychain.discovery.tailscale import TailPeer
from daisychain.errors import DaisyError, LinkError, PreflightError, TrustError
from daisychain.facts import Condition, Device, FoundHead, Nic, Node, Verdict, Versions
from daisychain.link.messages import BeWorker, Examine, Inspected, MakeInvite
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
        self.tasks.append(asyncio.ensure_future(work))


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


# --- without a network -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "error", "code"),
    [
        ("ethernet", LinkError("can't reach 10.0.0.1:1"), 1),
        ("loopback", LinkError("can't reach 10.0.0.1:1"), 4),
        ("loopback", TrustError("a typo"), 5),
    ],
)
async def test_where_no_nic_leads_out_a_head_that_can_not_be_reached_is_no_riddle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, error: DaisyError, code: int
) -> None:
    async def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr("daisychain.agent.membership.join_by_token", fail)
    verdict = Verdict(level="warn", check="nic", reason="lo reaches this machine only", remedy="Name another NIC")
    own = msgspec.structs.replace(NODE, interface=Nic(name="x", kind=kind), nic_verdict=verdict)
    worker = membership(FakeAgent(tmp_path, own), tmp_path)
    with pytest.raises(DaisyError) as caught:
        await worker.become(BeWorker(host="10.0.0.1", token="x"))
    assert caught.value.exit_code == code
    assert not worker.active
    if code == 4:
        assert str(caught.value) == "old: lo reaches this machine only. Name another NIC"


# --- looking for heads -----------------------------------------------------------------------------


async def test_machines_of_the_tailnet_that_answer_are_listed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    online = [TailPeer("big", "100.64.0.2"), TailPeer("phone", "100.64.0.3")]
    asked: list[str] = []

    async def read_peers(command: str) -> tuple[TailPeer, ...]:
        return tuple(online)

    async def listening(peers: Any, port: int) -> tuple[TailPeer, ...]:
        asked.extend(f"{peer.name}:{port}" for peer in peers)
        return tuple(peer for peer in peers if peer.name != "phone")

    monkeypatch.setattr(tailscale, "program", lambda: "tailscale")
    monkeypatch.setattr(tailscale, "read_peers", read_peers)
    monkeypatch.setattr(tailscale, "listening", listening)
    monkeypatch.setattr("daisychain.agent.membership.TAILNET_EVERY_S", 0.01)
    monkeypatch.setattr("daisychain.agent.membership.Knock", FakeKnock)
    agent = FakeAgent(tmp_path, mdns=False)
    worker = membership(agent, tmp_path)
    await worker.become(BeWorker())
    while asked.count("phone:47632") < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert [(head.name, head.address, head.port) for head in worker.snapshot(NODE)["heads"]] == [
        ("big", "100.64.0.2", 47632)
    ]
    assert asked.count("big:47632") == 1
    await worker.close()


class FakeKnock:
    """A head's line on the join screen, of which nothing is known yet."""

    def __init__(self, agent: Any, limit: Any, name: str, address: str, port: int, welcomed: Any) -> None:
        self.name, self.address, self.port = name, address, port

    def start(self) -> None:
        pass

    def shown(self) -> FoundHead:
        return FoundHead(id=f"{self.address}:{self.port}", name=self.name, address=self.address, port=self.port)

    async def close(self) -> None:
        pass


async def test_a_search_without_result_explains_multicast_and_offers_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tailscale, "program", lambda: "")
    agent = FakeAgent(tmp_path, mdns=False)
    agent.now = 1000.0
    worker = membership(agent, tmp_path)
    await worker.become(BeWorker())
    for later_s, words in ((9.0, "Looking for heads"), (11.0, "carry no multicast")):
        agent.now = 1000.0 + later_s
        assert words in worker.snapshot(NODE)["advice"]
    assert "daisychain join HOST" in worker.snapshot(NODE)["advice"]
    await worker.close()


@pytest.mark.parametrize("as_worker", [False, True])
async def test_doctor_says_that_mdns_does_not_work_and_goes_on(tmp_path: Path, as_worker: bool) -> None:
    async def handle(message: Any, head: Any) -> Inspected:
        return Inspected(condition=Condition(clock_s=0.0))

    deaf = Verdict(level="warn", check="discovery", reason="another program holds UDP port 5353", remedy="Type it")
    agent: Any = FakeAgent(tmp_path)
    agent.node_side = SimpleNamespace(handle=handle)
    agent.membership = SimpleNamespace(active=as_worker, head=None, discovery=deaf if as_worker else None)
    head = Headship(agent, KnownNodes(tmp_path / "nodes.json"))
    head._discovery = None if as_worker else deaf
    found = await head.examine(Examine())
    assert found.verdicts[-1] == msgspec.structs.replace(deaf, node="old")
    assert len(found.verdicts) > 1
