"""The dialling end, and the connection that the TUI and the CLI have with this machine's agent."""

import asyncio
import contextlib
import errno
import os
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, InvalidMessage

from daisychain.config import Paths, Settings
from daisychain.errors import DaisyError, LinkError
from daisychain.facts import Snapshot
from daisychain.link.messages import MAX_FRAME_BYTES, AnyMessage, Message, Refused, Watch, World
from daisychain.link.session import Session, error_of, refusal
from daisychain.trust.identity import Identity
from daisychain.trust.tls import client_context, server_certificate, server_id

DIAL_TIMEOUT_S = 8.0
START_TIMEOUT_S = 20.0
_REFUSAL = "can't start: "
Answer = TypeVar("Answer", bound=Message)


class Lock(msgspec.Struct, frozen=True):
    """What a running agent leaves in agent.json: how to reach it."""

    pid: int
    port: int


def read_lock(paths: Paths) -> Lock | None:
    """The lock of the agent that ran last; it may be gone."""
    try:
        return msgspec.json.decode(paths.agent_lock.read_bytes(), type=Lock)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return None


async def dial(host: str, port: int, context: ssl.SSLContext) -> tuple[ClientConnection, str, str]:
    """A connection, the server's id, and its certificate as PEM. Raises LinkError naming host and port."""
    where = f"{host}:{port}"
    try:
        socket = await connect(
            f"wss://{_bracketed(host)}:{port}/", ssl=context, server_hostname="daisychain", max_size=MAX_FRAME_BYTES,
            max_queue=8, compression=None, ping_interval=None, open_timeout=DIAL_TIMEOUT_S, close_timeout=2, proxy=None,
            user_agent_header=None,
        )  # fmt: skip
    except ssl.SSLCertVerificationError as error:
        raise LinkError(f"{where} is not the node it was before: its certificate is another one") from error
    except (TimeoutError, asyncio.TimeoutError) as error:
        remedy = f"Check the cable or Wi-Fi there, and that its firewall lets TCP port {port} in"
        raise LinkError(f"{where} did not answer within {DIAL_TIMEOUT_S:.0f} s", remedy) from error
    except (OSError, InvalidHandshake, InvalidMessage, EOFError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise LinkError(f"can't reach {where}: {why}", _remedy(error, sys.platform)) from error
    tls: Any = socket.transport.get_extra_info("ssl_object")
    return socket, server_id(tls), server_certificate(tls)


def _remedy(error: Exception, platform: str) -> str:
    if platform == "darwin" and getattr(error, "errno", None) == errno.EHOSTUNREACH:
        # what macOS 15 and later answer where its user hasn't allowed it
        return "Allow python and the terminal in System Settings, Privacy & Security, Local Network, then try again"
    return "Is daisychain running there, and is this its port?"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class AgentClient:
    """The local agent, as the TUI and the CLI see it: one request at a time or a stream of snapshots."""

    def __init__(self, session: Session, reader: "asyncio.Task[None]", snapshots: "asyncio.Queue[Snapshot]") -> None:
        self._session = session
        self._reader = reader
        self._snapshots = snapshots

    async def ask(self, message: Message, timeout_s: float = 60.0) -> AnyMessage:
        """The agent's answer. Raises the DaisyError it refused with, or LinkError when it is gone."""
        return await self._session.ask(message, timeout_s)

    async def expect(self, message: Message, kind: type[Answer], timeout_s: float = 60.0) -> Answer:
        """Like ask, for an answer of one kind."""
        answer = await self.ask(message, timeout_s)
        if not isinstance(answer, kind):
            raise LinkError(f"the agent answered {type(message).__name__} with {type(answer).__name__}")
        return answer

    async def snapshots(self, interval_s: float = 1.0) -> AsyncIterator[Snapshot]:
        """The world, at once and then whenever it changes; only the newest is kept. Raises LinkError at the end."""
        await self.ask(Watch(interval_s=interval_s))
        while True:
            getter = asyncio.ensure_future(self._snapshots.get())
            closed = asyncio.ensure_future(self._session.closed.wait())
            done, pending = await asyncio.wait({getter, closed}, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            if getter not in done:
                raise LinkError("this machine's agent is gone", "Start daisychain again; its log says why")
            yield getter.result()

    @property
    def closed(self) -> bool:
        """Whether the agent is gone."""
        return self._session.closed.is_set()

    async def close(self) -> None:
        await self._session.close()
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader

    async def __aenter__(self) -> "AgentClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def connect_local(paths: Paths, settings: Settings) -> AgentClient:
    """This machine's running agent. Raises LinkError when there is none."""
    lock = read_lock(paths)
    if lock is None:
        raise LinkError("no agent is running on this machine", "Start one with: daisychain")
    identity = Identity.load_or_create(paths.identity, settings.name)
    context = client_context(identity, identity.certificate_pem, identity.certificate_pem)
    socket, _, _ = await dial("127.0.0.1", lock.port, context)
    newest: asyncio.Queue[Snapshot] = asyncio.Queue(maxsize=1)

    async def take(_: Session, message: AnyMessage, __: int) -> None:
        if isinstance(message, World):
            if newest.full():
                newest.get_nowait()
            newest.put_nowait(message.snapshot)

    session = Session(socket, "agent", take)
    return AgentClient(session, asyncio.create_task(session.run()), newest)


async def connect_or_start(paths: Paths, settings: Settings, flags: tuple[str, ...] = ()) -> AgentClient:
    """This machine's agent, started first when there is none. `flags` go to a new agent's command line.

    Raises DaisyError with the reason when it doesn't come up.
    """
    with contextlib.suppress(LinkError):
        return await connect_local(paths, settings)
    process = start_agent(paths, flags)
    return await wait_for_agent(paths, settings, process)


async def wait_for_agent(paths: Paths, settings: Settings, process: "subprocess.Popen[bytes]") -> AgentClient:
    """The client of an agent that is being started as `process`."""
    ending = asyncio.get_running_loop().time() + START_TIMEOUT_S
    while asyncio.get_running_loop().time() < ending:
        lock = read_lock(paths)
        gone = process.poll() is not None
        # another command may have started one at the same moment; then ours ends and that one answers
        if lock is not None and (gone or lock.pid == process.pid):
            with contextlib.suppress(LinkError):
                return await connect_local(paths, settings)
        if gone:
            raise _last_words(paths) or DaisyError("the agent ended at once", f"Its log: {paths.agent_log}")
        await asyncio.sleep(0.05)
    raise DaisyError(f"the agent did not answer within {START_TIMEOUT_S:.0f} s", f"Its log: {paths.agent_log}")


def start_agent(
    paths: Paths, flags: tuple[str, ...] = (), environment: dict[str, str] | None = None, tied: bool = False
) -> "subprocess.Popen[bytes]":
    """Start an agent in its own session, so that closing this terminal leaves it alone.

    tied: it ends with this process (its standard input's end), and not by itself.
    """
    paths.state.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "daisychain.agent", *flags, *(["--tied"] if tied else [])]
    with paths.agent_log.open("ab") as stream:
        return subprocess.Popen(
            words, stdin=subprocess.PIPE if tied else subprocess.DEVNULL, stdout=stream, stderr=stream,
            start_new_session=True, env=os.environ | (environment or {}), cwd=os.path.sep,
        )  # fmt: skip


def as_log_line(error: DaisyError) -> str:
    """Why an agent can't start, for its log: the command that started it reads it there."""
    return _REFUSAL + msgspec.json.encode(refusal(error)).decode()


def _last_words(paths: Paths) -> DaisyError | None:
    """The newest such line's error."""
    with contextlib.suppress(OSError):
        for line in reversed(paths.agent_log.read_text(errors="replace").splitlines()[-20:]):
            _, found, words = line.partition(_REFUSAL)
            if found:
                with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
                    return error_of(msgspec.json.decode(words, type=Refused))
    return None


class Reconnecting:
    """The local agent for screens that stay open: each new stream of snapshots may be of a new connection."""

    def __init__(self, paths: Paths, settings: Settings, agent: AgentClient) -> None:
        self._paths, self._settings, self._agent = paths, settings, agent

    async def ask(self, message: Message) -> AnyMessage:
        """Like AgentClient.ask."""
        return await self._agent.ask(message)

    async def snapshots(self) -> AsyncIterator[Snapshot]:
        """Like AgentClient.snapshots; connects again first when the agent was gone. Raises LinkError."""
        if self._agent.closed:
            self._agent = await connect_local(self._paths, self._settings)
        async for snapshot in self._agent.snapshots():
            yield snapshot

    async def close(self) -> None:
        await self._agent.close()
