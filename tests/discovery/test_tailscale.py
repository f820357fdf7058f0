"""What Tailscale says of its tailnet: who may be a head there, and whose packets are relayed."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daisychain.discovery import tailscale
from daisychain.discovery.tailscale import MAX_PEERS, TailPeer, listening, parse, program, read_peers


def peer(name: str, *addresses: str, **fields: Any) -> dict[str, Any]:
    """As `tailscale status --json` has it, abridged."""
    facts = {"ID": "n1", "DNSName": f"{name}.tail0.ts.net.", "OS": "linux", "Addrs": None, "Relay": "fra"}
    return {**facts, "HostName": name, "TailscaleIPs": addresses, "CurAddr": "", "Online": True, **fields}


def status(*peers: dict[str, Any], **fields: Any) -> bytes:
    by_key = {f"nodekey:{number}": one for number, one in enumerate(peers)}
    whole = {"Version": "1.90.1", "BackendState": "Running", "Self": peer("me", "100.64.0.1"), "Peer": by_key}
    return json.dumps({**whole, **fields}).encode()


def test_peers_that_are_online_are_candidates_by_name() -> None:
    found = parse(
        status(
            peer("old", "fd7a:115c:a1e0::2", "100.64.0.2"),
            peer("away", "100.64.0.3", Online=False),
            peer("big", "100.64.0.9", Active=True, CurAddr="192.168.1.9:41641"),
            peer("only6", "fd7a:115c:a1e0::4"),
            peer("none"),
            peer("elsewhere", "8.8.8.8", "10.0.0.1"),
        )
    )
    assert found == (TailPeer("big", "100.64.0.9"), TailPeer("old", "100.64.0.2"))


@pytest.mark.parametrize(
    ("fields", "relay"),
    [
        ({"Active": True, "CurAddr": ""}, "fra"),
        ({"Active": True, "CurAddr": "", "PeerRelay": "10.0.0.5:4000:vni:1"}, "10.0.0.5:4000:vni:1"),
        ({"Active": True, "CurAddr": "192.168.1.9:41641"}, ""),
        # a region is named for idle peers too: nothing goes through it
        ({"Active": False, "CurAddr": ""}, ""),
        ({"Active": True, "CurAddr": "", "Relay": ""}, ""),
    ],
)
def test_a_way_is_relayed_where_packets_go_and_no_address_is_theirs(fields: dict[str, Any], relay: str) -> None:
    assert parse(status(peer("old", "100.64.0.2", **fields))) == (TailPeer("old", "100.64.0.2", relay),)


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"null", b"\xff", status(Peer=None), status(Peer=[]), status(peer("a", 3)),
     *(status(peer("a", "100.64.0.2"), BackendState=state) for state in ("NeedsLogin", "Stopped"))],
)  # fmt: skip
def test_any_other_text_is_nobody(text: bytes) -> None:
    assert parse(text) == ()


def test_names_are_cleaned_and_the_list_is_bounded() -> None:
    assert parse(status(peer("\x1b[31mbig[/]", "100.64.0.2")))[0].name == "big(/)"
    many = [peer(f"n{number:03}", f"100.64.1.{number}") for number in range(200)]
    assert len(parse(status(*many))) == MAX_PEERS


@given(
    st.binary() | st.recursive(st.none() | st.booleans() | st.text(), st.lists).map(lambda x: json.dumps(x).encode())
)
def test_no_text_raises(text: bytes) -> None:
    assert parse(text) == ()


# --- the command -----------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`command("python source")`: a `tailscale` on the PATH."""

    def make(source: str) -> str:
        file = tmp_path / "tailscale"
        file.write_text(f"#!{sys.executable} -S\n{source}\n", encoding="utf-8")
        file.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        return str(file)

    return make


@pytest.mark.skipif(sys.platform == "win32", reason="a script with #!")
async def test_the_command_is_asked(command: Any) -> None:
    said = status(peer("old", "100.64.0.2")).decode()
    path = command(f"import sys; assert sys.argv[1:] == ['status', '--json']; print('''{said}''')")
    assert program() == path
    assert await read_peers(path) == (TailPeer("old", "100.64.0.2"),)


@pytest.mark.skipif(sys.platform == "win32", reason="a script with #!")
@pytest.mark.parametrize("source", ["import sys; sys.exit('not running')", "import time; time.sleep(60)"])
async def test_a_command_that_fails_or_hangs_is_nobody(
    command: Any, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tailscale, "STATUS_S", 0.3)
    assert await read_peers(command(source)) == ()


async def test_without_tailscale_there_is_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(tailscale, "MAC_APP", tmp_path / "Tailscale")
    assert program() == ""
    (tmp_path / "Tailscale").touch()
    assert program() == str(tmp_path / "Tailscale")
    assert await read_peers(str(tmp_path / "none")) == ()


async def test_who_listens_is_told_from_who_does_not() -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    here, nobody = TailPeer("here", "127.0.0.1"), TailPeer("nobody", "127.0.0.2")
    async with server:
        assert await listening([nobody, here], port) == (here,)
