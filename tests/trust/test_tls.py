"""TLS over real sockets: who gets in, who is who, and who is refused."""

import asyncio
import contextlib
import datetime
import ssl
from pathlib import Path

import pytest

from daisychain.errors import TrustError
from daisychain.trust import identity as identity_module
from daisychain.trust.identity import Identity
from daisychain.trust.tls import PeerId, client_context, peer_id, server_certificate, server_context, server_id


class Nodes:
    def __init__(self, folder: Path) -> None:
        for name in ("head", "worker", "other", "stranger"):
            setattr(self, name, Identity.load_or_create(folder / name, name))

    head: Identity
    worker: Identity
    other: Identity
    stranger: Identity


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Nodes:
    return Nodes(tmp_path_factory.mktemp("nodes"))


class Meeting:
    """One connection, as both ends saw it."""

    def __init__(self) -> None:
        self.peer: PeerId | None = None
        self.version: str | None = None
        self.server = ""
        self.certificate = ""
        self.error: Exception | None = None


async def meet(head: Identity, client: ssl.SSLContext, server: ssl.SSLContext | None = None) -> Meeting:
    """Connect a client to a head's server; the server says one byte once it knows who it is."""
    meeting = Meeting()
    served = asyncio.Event()

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tls = writer.get_extra_info("ssl_object")
        meeting.peer, meeting.version = peer_id(tls, head), tls.version()
        writer.write(b"!")
        with contextlib.suppress(OSError):
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        served.set()

    listener = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=server or server_context(head))
    # what a failed handshake tells the loop's handler is what the assertions are about
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    port = listener.sockets[0].getsockname()[1]
    async with listener:
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=client, server_hostname="daisychain", ssl_handshake_timeout=5
            )
            tls = writer.get_extra_info("ssl_object")
            meeting.server, meeting.certificate = server_id(tls), server_certificate(tls)
            # in TLS 1.3 a client learns only here that its certificate was refused
            if await asyncio.wait_for(reader.read(1), 5) != b"!":
                raise ConnectionResetError("closed without a word")
            writer.close()
            await writer.wait_closed()
            await asyncio.wait_for(served.wait(), 5)
        except OSError as error:  # ssl.SSLError is one
            meeting.error = error
    return meeting


async def test_a_joined_worker_is_known_by_its_id(nodes: Nodes) -> None:
    signed = nodes.head.sign(nodes.worker.certificate_pem)
    got = await meet(nodes.head, client_context(nodes.worker, nodes.head.certificate_pem, signed))
    assert got.error is None
    assert got.peer == PeerId(kind="worker", id=nodes.worker.id)
    assert got.server == nodes.head.id
    assert got.version == "TLSv1.3"


async def test_our_own_clients_are_local(nodes: Nodes) -> None:
    own = nodes.head.certificate_pem
    got = await meet(nodes.head, client_context(nodes.head, own, own))
    assert (got.error, got.peer) == (None, PeerId(kind="local", id=nodes.head.id))


async def test_a_stranger_gets_as_far_as_the_door_and_sees_who_is_there(nodes: Nodes) -> None:
    got = await meet(nodes.head, client_context(nodes.stranger))
    assert (got.error, got.peer) == (None, PeerId(kind="stranger"))
    assert got.server == nodes.head.id
    assert identity_module.id_of(got.certificate) == nodes.head.id


async def test_a_leaf_of_another_head_is_refused(nodes: Nodes) -> None:
    signed = nodes.other.sign(nodes.worker.certificate_pem)
    got = await meet(nodes.head, client_context(nodes.worker, nodes.head.certificate_pem, signed))
    assert got.peer is None
    assert got.error is not None


async def test_a_strangers_own_certificate_is_refused(nodes: Nodes) -> None:
    client = client_context(nodes.stranger, nodes.head.certificate_pem, nodes.stranger.certificate_pem)
    got = await meet(nodes.head, client)
    assert got.peer is None
    assert got.error is not None


async def test_a_leaf_cannot_sign_another(nodes: Nodes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    leaf = nodes.head.sign(nodes.worker.certificate_pem)
    # the worker signs a leaf of its own in the head's place: its issuer is the leaf
    forger = Identity(nodes.worker.folder, "forger", nodes.worker.id, leaf, nodes.worker._key)
    monkeypatch.setattr(identity_module, "check_self_signed", identity_module.load_certificate)
    forged = forger.sign(nodes.stranger.certificate_pem)
    monkeypatch.undo()
    assert identity_module.common_name(identity_module.load_certificate(forged)) == nodes.stranger.id
    got = await meet(nodes.head, client_context(nodes.stranger, nodes.head.certificate_pem, forged + leaf))
    assert got.peer is None
    assert got.error is not None


async def test_a_worker_takes_no_other_head(nodes: Nodes) -> None:
    signed = nodes.head.sign(nodes.worker.certificate_pem)
    got = await meet(nodes.other, client_context(nodes.worker, nodes.head.certificate_pem, signed))
    assert isinstance(got.error, ssl.SSLCertVerificationError)
    assert got.peer is None


async def test_a_worker_cannot_pose_as_its_head(nodes: Nodes, tmp_path: Path) -> None:
    file = tmp_path / "leaf.pem"
    file.write_text(nodes.head.sign(nodes.other.certificate_pem))
    impostor = server_context(nodes.other)
    impostor.load_cert_chain(file, nodes.other.key_file)
    signed = nodes.head.sign(nodes.worker.certificate_pem)
    got = await meet(nodes.other, client_context(nodes.worker, nodes.head.certificate_pem, signed), impostor)
    assert isinstance(got.error, ssl.SSLCertVerificationError)


async def test_a_certificate_without_its_key_is_useless(nodes: Nodes) -> None:
    with pytest.raises(TrustError):
        client_context(nodes.stranger, nodes.head.certificate_pem, nodes.head.sign(nodes.worker.certificate_pem))


@pytest.mark.parametrize("pem", ["", "garbage", "\ud800", "ä"])
def test_garbage_for_a_certificate_is_a_trust_error(nodes: Nodes, pem: str) -> None:
    with pytest.raises(TrustError):
        client_context(nodes.worker, pem, pem)
    with pytest.raises(TrustError):
        client_context(nodes.worker, nodes.head.certificate_pem, pem)


async def test_nothing_below_tls_13_is_spoken(nodes: Nodes) -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert (await meet(nodes.head, old)).error is not None
    for context in (server_context(nodes.head), client_context(nodes.head)):
        assert context.minimum_version == context.maximum_version == ssl.TLSVersion.TLSv1_3


async def test_a_dead_clock_locks_nobody_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nodes: Nodes) -> None:
    """Certificates that begin in the future are what a clock at 1970 sees."""
    monkeypatch.setattr(identity_module, "NOT_BEFORE", datetime.datetime(2110, 1, 1, tzinfo=datetime.timezone.utc))
    head = Identity.load_or_create(tmp_path / "h", "h")
    worker = Identity.load_or_create(tmp_path / "w", "w")
    got = await meet(head, client_context(worker, head.certificate_pem, head.sign(worker.certificate_pem)))
    assert (got.error, got.peer) == (None, PeerId(kind="worker", id=worker.id))
