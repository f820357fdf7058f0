"""One generation's process group: how ranks find each other, and how a rank lets go of one that is broken."""

import atexit
import contextlib
import os
import queue
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from daisychain.train.task import Formation

CONNECT = timedelta(seconds=20)
"""How long a rank waits for the others while they connect; gloo takes up to five times as long."""
STORE = timedelta(seconds=2)
PATIENCE_S = 0.05
DESCRIPTORS = "/dev/fd"
"""Where Linux and macOS list a process's own descriptors."""
EXCHANGE = timedelta(days=7)
"""How long for another one's gradients: it may be scoring. Who is lost is noticed by heartbeats, much sooner."""

_stuck: list[Any] = []
"""Groups that have a thread which gloo will never wake."""


class Listener:
    """A socket bound to this node's own address, to serve the next generation's store from.

    torch would listen on every address, and two processes could race for a port.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._socket: socket.socket | None = None

    @property
    def port(self) -> int:
        """Where it listens. Raises OSError when this node doesn't have the address any more."""
        if self._socket is None:
            self._socket = socket.create_server((self._address, 0), backlog=64)
        return int(self._socket.getsockname()[1])

    def take(self) -> int:
        """The socket's descriptor, now the taker's."""
        _ = self.port
        taken, self._socket = self._socket, None
        assert taken is not None
        return taken.detach()


class WarmUp:
    """Opens a store of this process's own, beside whatever else goes on, and throws it away.

    The first connection asks a name server for the names of both ends; one that can't be reached costs six seconds.
    They are spent while the script still loads, not while other ranks wait.
    """

    def __init__(self, address: str) -> None:
        self._thread = threading.Thread(target=self._open, args=(address,), name="warm-up", daemon=True)
        self._thread.start()

    def _open(self, address: str) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            listener = Listener(address)
            port = listener.port
            TCPStore(address, port, 1, True, timeout=CONNECT, wait_for_workers=False, master_listen_fd=listener.take())

    def wait(self) -> None:
        self._thread.join()


class Group:
    """A process group of gloo's, outside torch's list of groups: it can be left behind while it still connects."""

    def __init__(self) -> None:
        self._before: set[Any] = set()
        self._own: set[Any] | None = None
        self._open = False
        self.backend: Any = None
        """ProcessGroupGloo, once it is formed."""

    def form(self, formation: Formation, listener: Listener, given_up: Callable[[], bool]) -> None:
        """Connect to all others. Raises RuntimeError (DistError, or gloo's own) when it doesn't come about.

        given_up: asked all the time; gloo waits for a lost rank's answer, and no signal can end that. Its thread is
        left to itself then.
        """
        self._before, self._own, self._open = _connections(), None, True
        descriptor = listener.take() if formation.rank == 0 else None
        found: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=_connect, args=(formation, descriptor, given_up, found), daemon=True).start()
        while True:
            try:
                self.backend = found.get(timeout=PATIENCE_S)
                break
            except queue.Empty:
                if given_up():
                    raise RuntimeError("another rank was lost while the ranks connected") from None
        if isinstance(self.backend, Exception):
            raise self.backend
        self._own = _connections() - self._before

    def form_by_environment(self) -> None:
        """Take torchrun's group."""
        join_by_environment()
        self.backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))

    def sever(self) -> None:
        """Cut this process's own end of every connection, from any thread: what waits for a lost rank raises.

        gloo itself would wait for its timeout, and can't be aborted. Connections of the script's own stay.
        """
        if not self._open:
            return
        now = _connections()
        for fd, _, _ in now & self._own if self._own is not None else now - self._before:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as ours:
                ours.shutdown(socket.SHUT_RDWR)

    def close(self, *, has_ended: bool = True) -> None:
        """Part; the others notice if they are still at work.

        has_ended: whether nothing is under way any more. The group's end would wait for it, with Python's lock held.
        """
        if not has_ended:
            _stuck.append(self.backend)
        self._open, self.backend = False, None


def _connect(formation: Formation, descriptor: int | None, given_up: Callable[[], bool], found: Any) -> None:
    """Put a ProcessGroupGloo, or what went wrong, into `found`."""
    try:
        store = _store(formation, descriptor, given_up)
        backend = dist.ProcessGroupGloo(
            PrefixStore(f"g{formation.generation}", store), formation.rank, formation.world_size, CONNECT
        )
        backend._set_default_timeout(EXCHANGE)
        found.put(backend)
    except Exception as error:
        found.put(error)


def _store(formation: Formation, descriptor: int | None, given_up: Callable[[], bool]) -> TCPStore:
    """The generation's store. A client would try for its whole timeout to reach a server that is gone."""
    until = time.monotonic() + CONNECT.total_seconds()
    while True:
        try:
            store = TCPStore(
                formation.address,
                formation.port,
                formation.world_size,
                formation.rank == 0,
                timeout=STORE,
                wait_for_workers=False,
                master_listen_fd=descriptor,
            )
            store.set_timeout(CONNECT)
            return store
        except RuntimeError:
            if formation.rank == 0 or given_up() or time.monotonic() > until:
                raise


def _connections() -> set[Any]:
    """(descriptor, own address, other's address) of every TCP connection of this process.

    Each descriptor is asked itself where the system lists them: the table of all the machine's sockets may skip one
    while others come and go, and a connection that isn't cut lets its rank wait for ever.
    """
    try:
        descriptors = [int(name) for name in os.listdir(DESCRIPTORS)]  # noqa: PTH208
    except OSError:
        found = psutil.Process().net_connections("tcp")
        return {(c.fd, c.laddr, c.raddr) for c in found if c.fd != -1 and c.raddr}
    return {ends for fd in descriptors if (ends := _ends(fd)) is not None}


def _ends(fd: int) -> tuple[int, Any, Any] | None:
    """As in _connections; None for whatever is no TCP connection."""
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return None
        with socket.socket(fileno=os.dup(fd)) as same:
            internet = same.family in (socket.AF_INET, socket.AF_INET6) and same.type == socket.SOCK_STREAM
            return (fd, same.getsockname(), same.getpeername()) if internet else None
    except OSError:  # closed meanwhile, or connected to nobody
        return None


def join_by_environment() -> None:
    """Form torchrun's group, and part at the interpreter's end unless the script failed."""
    dist.init_process_group("gloo")
    failed = _remember_failure()

    def part() -> None:
        with contextlib.suppress(RuntimeError, ValueError):
            if not failed():
                dist.barrier()
            dist.destroy_process_group()

    atexit.register(part)


def _remember_failure() -> Callable[[], bool]:
    """Whether an exception has ended the script; asked at exit, when it is too late to see it."""
    before, seen = sys.excepthook, []

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        seen.append(kind)
        before(kind, error, trace)

    sys.excepthook = hook
    return lambda: bool(seen)
