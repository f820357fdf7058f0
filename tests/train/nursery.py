"""Ranks that needn't import torch: forked from a process that has imported it once, for all tests of a session.

A forked rank has its own session, folder, environment and streams, runs the same module as `__main__`, and is killed
and waited for as any process. It differs from `python -m daisychain.train.rank` in its command line, in how soon it is
there, and in sharing its addresses and its seed for hashes with the others of its nursery.
"""

import contextlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

MODULE = "daisychain.train.rank"
CAN_FORK = sys.platform == "linux" and hasattr(os, "pidfd_open")
LARGEST = 1 << 20
"""Bytes of a request. The system refuses to send so many."""
PASSING = ("PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR")
"""What pytest changes for each test, and what torch sets in a process that makes an optimizer."""


class Forked:
    """A rank forked by a nursery: what tests use of subprocess.Popen, and as there."""

    def __init__(self, control: socket.socket, folder: Path, log: IO[bytes], environment: dict[str, str]) -> None:
        """Returns once the rank leads its own session. Raises OSError where none can be had."""
        self._lock, self._code = threading.Lock(), None
        self._news, news = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        (orders, to_orders), (of_reports, reports) = os.pipe(), os.pipe()
        self.stdin, self.stdout = os.fdopen(to_orders, "wb"), os.fdopen(of_reports, "rb")
        request = json.dumps({"folder": str(folder), "environment": environment}).encode()
        try:
            socket.send_fds(control, [request], [orders, reports, log.fileno(), news.fileno()])
        finally:
            os.close(orders)
            os.close(reports)
            news.close()
        self.pid = self._hear("pid")

    def __del__(self) -> None:
        self._news.close()

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, or minus the signal; from any number of threads. Raises subprocess.TimeoutExpired."""
        # readable for ever once the rank has ended: the nursery closes its end then
        if not select.select([self._news], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(MODULE, timeout or 0)
        with self._lock:
            if self._code is None:
                self._code = self._hear("code")
            return self._code

    def _hear(self, wanted: str) -> int:
        what, _, number = self._news.recv(32).decode().partition(" ")
        if what != wanted:
            raise OSError(f"no {wanted} of a forked rank, but {what or 'the end of its nursery'} {number}")
        return int(number)


class Nursery:
    """A process that has imported torch and is there to be forked.

    It ends with this object's `close` or with this process, however that ends, and kills its ranks before.
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, (folder / "nursery.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                cwd=folder,
                stdin=subprocess.PIPE,  # two pipes and a file, as its ranks have
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env=environment,
                pass_fds=[theirs.fileno()],
            )

    def fork(self, folder: Path, log: IO[bytes], environment: dict[str, str]) -> Forked:
        """Fork a rank; waits until torch is imported."""
        return Forked(self._control, folder, log, environment)

    def close(self) -> None:
        self._control.close()
        with self.process:
            try:
                assert self.process.wait(30) == 0
            finally:
                self.process.kill()


class Nurseries:
    """Starts ranks: forked where it makes no difference, afresh where it does or where nothing can be forked."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self._there: dict[int, tuple[Nursery, dict[str, str]]] = {}

    def start(self, seat: int, folder: Path, log: IO[bytes], afresh: bool = False) -> Forked | subprocess.Popen[bytes]:
        """A rank in this folder, its standard error going to the log."""
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
        if CAN_FORK and not afresh:
            # Two, for neighbours must not get by with sets that are in the same order by chance.
            nursery, known = self._nursery(seat % 2, environment)
            # Libraries look at the environment when they are loaded.
            if _lasting(environment) == _lasting(known):
                return nursery.fork(folder, log, environment)
        return subprocess.Popen(
            [sys.executable, "-m", MODULE],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            env=environment,
        )

    def _nursery(self, number: int, environment: dict[str, str]) -> tuple[Nursery, dict[str, str]]:
        with self._lock:
            if number not in self._there:
                self._there[number] = Nursery(self._folder, environment), environment
            return self._there[number]

    def close(self) -> None:
        for nursery, _ in self._there.values():
            nursery.close()


def _lasting(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in PASSING}


def serve(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """In the nursery: fork a rank for each request, tell of each end, die with the session.

    Returns in each rank, with its request and its descriptors; nothing else of the nursery is open there.
    """
    ranks: dict[int, tuple[int, socket.socket]] = {}
    while True:
        ready, _, _ = select.select([control, *ranks], [], [])
        for ended in ready:
            if ended is not control:
                pid, news = ranks.pop(ended)
                _, status = os.waitpid(pid, 0)
                with contextlib.suppress(OSError):
                    news.send(b"code %d" % os.waitstatus_to_exitcode(status))
                news.close()
                os.close(ended)
        if control not in ready:
            continue
        request, descriptors, _, _ = socket.recv_fds(control, LARGEST, 4)
        if not request:
            for pid, _ in ranks.values():
                os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            os._exit(0)
        assert len(list(Path("/proc/self/task").iterdir())) == 1, "only the thread that forks lives on in the rank"
        pid = os.fork()
        if pid == 0:
            control.close()
            for pidfd, (_, news) in ranks.items():
                os.close(pidfd)
                news.close()
            return json.loads(request), descriptors
        *streams, news = descriptors
        for stream in streams:
            os.close(stream)
        ranks[os.pidfd_open(pid)] = pid, socket.socket(fileno=news)


def become_rank(request: dict[str, Any], descriptors: list[int]) -> None:
    """In a fork: be as a process that was started in this folder, with this environment and these streams."""
    os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    *streams, news = descriptors
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = request["folder"]  # as `python -m` does before 3.11
    sys.argv[1:] = []
    # Unlike those of any other rank, as in a process of its own; Python's `random` sees to that itself.
    torch.default_generator.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    with socket.socket(fileno=news) as telling:
        telling.send(b"pid %d" % os.getpid())
    runpy.run_module(MODULE, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    import torch
    import torch._dynamo  # every optimizer does

    import daisychain.train.api  # noqa: F401

    become_rank(*serve(socket.socket(fileno=int(sys.argv[1]))))
