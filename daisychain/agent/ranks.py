"""The ranks of a run on this node: their work folder, their processes, their reports, their end."""

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil  # type: ignore[import-untyped,unused-ignore]

from daisychain.agent.bundles import BlobStore, explain, lay_out
from daisychain.config import Paths
from daisychain.errors import DaisyError, DataError
from daisychain.link.messages import AnyMessage, Done, EndRun, File, PrepareRun, StartRank
from daisychain.machine.allocator import keeping
from daisychain.machine.condition import count_oom_kills
from daisychain.plan.devices import CPU, visible
from daisychain.plan.devices import threads as threads_of

log = logging.getLogger(__name__)

REPORT_LIMIT_BYTES = 1024 * 1024
SILENT_AFTER_S = 4.0
"""A rank beats every second; one that says nothing for so long is frozen."""
ORDER_TIMEOUT_S = 2.0
DRAIN_S = 1.0
"""How long a rank's last lines may take after its exit; a child of it may hold the pipe open for ever."""
KILLED = -9
RANK_MODULE = "daisychain.train.rank"
OUTPUT = ".output"
CHECKPOINTS = "checkpoints"
Fetch = Callable[[File, int, Callable[[bytes], None]], Awaitable[None]]
"""Get a file's content from an offset on, piece by piece."""
Report = Callable[[int, dict[str, Any]], Awaitable[None]]
"""Called with a rank's seat and each of its reports; the last is {"kind": "exit", "code": ...}."""
Shipped = Callable[[int, int], Awaitable[None]]


class NodeRun:
    """This node's part of one run. The head drives its own part through the same three calls as a worker's."""

    def __init__(self, paths: Paths, run: str, environment: dict[str, str]) -> None:
        self._paths = paths
        self.run = run
        self.folder = paths.work / run
        self._environment = environment
        self._ranks: dict[int, Rank] = {}
        """By seat."""
        self._fetching: asyncio.Future[None] | None = None
        self._laying: asyncio.Future[None] | None = None
        self._ended = False

    async def prepare(self, message: PrepareRun, local: dict[str, Path], fetch: Fetch | None, shipped: Shipped) -> Done:
        """Get and lay out the run's files. `local`: files on this machine, by hash; `fetch`: for all others."""
        blobs = BlobStore(self._paths.blobs)
        try:
            if fetch is not None:
                await self._fetch_missing(message.files, blobs, fetch, shipped)
            sources = [(file, local.get(file.sha256) or blobs.path(file.sha256)) for file in message.files]
            self.folder.mkdir(parents=True, exist_ok=False)
            # a thread can't be cancelled: `end` waits for it before it clears the folder
            self._laying = asyncio.ensure_future(asyncio.to_thread(lay_out, sources, self.folder, self._paths.blobs))
            await asyncio.shield(self._laying)
        except OSError as error:
            raise explain(error, self._paths.work) from error
        self._check_going_on()
        return Done()

    def _check_going_on(self) -> None:
        if self._ended:
            raise DaisyError(f"run {self.run} was ended meanwhile")

    async def _fetch_missing(self, files: tuple[File, ...], blobs: BlobStore, fetch: Fetch, shipped: Shipped) -> None:
        missing = {file.sha256: file for file in files if not blobs.has(file)}
        total = sum(file.size for file in missing.values())
        await asyncio.to_thread(blobs.make_room, total, [file.sha256 for file in files])
        have = 0
        for file in missing.values():
            have += blobs.offset(file)
            told = have

            def take(piece: bytes, file: File = file) -> None:
                nonlocal have
                blobs.append(file, piece)
                have += len(piece)

            self._fetching = fetching = asyncio.ensure_future(fetch(file, blobs.offset(file), take))
            try:
                while not (await asyncio.wait({fetching}, timeout=0.5))[0]:
                    if have != told:
                        told = have
                        await shipped(have, total)
            finally:
                fetching.cancel()
            self._check_going_on()
            fetching.result()
            await asyncio.to_thread(blobs.accept, file)
        await shipped(total, total)

    async def start(
        self, message: StartRank, *, address: str, folder: Path, threads: int, slowdown: float, nic: str, report: Report
    ) -> Done:
        """Start a rank's process, anew if it has had one. Its reports, then its exit, go to `report`.

        folder: this node's folder of the run, for logs and checkpoints. threads: of all this node's CPU ranks together.
        """
        rank = self._ranks.setdefault(message.seat, Rank(message.seat))
        device = message.devices[message.place]
        own = threads_of(message.devices, message.place, threads)
        output = numbered(self.folder / OUTPUT, message.place)
        task = {
            "rank": message.seat,
            "names": message.names,
            "address": address,
            "script": message.script,
            "args": message.args,
            "settings": message.settings,
            "slowdown": slowdown,
            "threads": own,
            # a rank sees its own GPU alone
            "device": CPU if device == CPU else "cuda:0",
            "output": str(output),
            "checkpoints": str(numbered(folder / CHECKPOINTS, message.place)),
            "resume": message.resume,
        }
        environment = {
            **keeping(os.environ),
            **of_system(sys.platform),
            **self._environment,
            "RANK": str(message.seat),
            "WORLD_SIZE": str(len(message.names)),
            "GLOO_SOCKET_IFNAME": nic,
            "OMP_NUM_THREADS": str(own),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": visible(device),
            "PYTHONUNBUFFERED": "1",
            # a random.py beside the script must not stand in for Python's own while torch is loaded
            "PYTHONSAFEPATH": "1",
        }
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        await asyncio.to_thread(output.mkdir, parents=True, exist_ok=True)
        await rank.start(task, environment, self.folder, folder / f"rank-{message.seat}.log", report)
        return Done()

    @property
    def alive(self) -> tuple[int, ...]:
        """Seats whose rank's process runs."""
        return tuple(seat for seat, rank in self._ranks.items() if rank.alive)

    def rank(self, seat: int) -> "Rank":
        """The rank on a seat; one that was never started hears nothing."""
        return self._ranks.get(seat) or Rank(seat)

    async def order(self, seat: int, order: dict[str, Any]) -> None:
        """Write one line to a rank."""
        await self.rank(seat).order(order)

    async def end(self, _: EndRun | None = None) -> AnyMessage:
        """Kill what is left of the ranks and their children, and clear the work folder."""
        self._ended = True
        if self._fetching is not None:
            self._fetching.cancel()
        if self._laying is not None:
            await asyncio.wait({self._laying})
        await asyncio.gather(*(rank.end() for rank in self._ranks.values()))
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)
        return Done()


def of_system(platform: str) -> dict[str, str]:
    """What a rank's environment needs on one system only. torch's wheels for Windows are built without libuv."""
    return {"USE_LIBUV": "0"} if platform == "win32" else {}


def numbered(path: Path, place: int) -> Path:
    """A rank's own folder: as it is called for a node's first rank, with -1, -2 ... for its others."""
    return path.with_name(f"{path.name}-{place}") if place else path


class Rank:
    """One rank's process: its pipes, what it said, its end."""

    def __init__(self, seat: int) -> None:
        self.seat = seat
        self.waits: dict[str, Any] | None = None
        """What it last said while it waits for a generation; None while it doesn't."""
        self.generation = 0
        """The newest that it was told to form."""
        self.output = Path()
        """Where it leaves its results."""
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._heard_s = 0.0
        self._peak_bytes: int | None = None
        self._oom_kills: int | None = None
        """Of the whole machine when it was started."""

    async def start(
        self, task: dict[str, Any], environment: dict[str, str], work: Path, log_file: Path, report: Report
    ) -> None:
        """Start the process in the folder `work`; what was left of the one before is killed."""
        if self._process is not None:
            await end_group(self._process)
        self.output = Path(task["output"])
        with log_file.open("ab") as stream:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", RANK_MODULE, stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE, stderr=stream, cwd=work, env=environment, start_new_session=True,
                limit=REPORT_LIMIT_BYTES,
            )  # fmt: skip
        self.waits = self._peak_bytes = None
        self._oom_kills = count_oom_kills()
        await self.order(task)
        self._reader = asyncio.create_task(self._read(self._process, report))

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.returncode is None

    async def order(self, order: dict[str, Any]) -> None:
        """Write one line to it; a rank that has ended hears nothing."""
        if self._process is not None and self._process.stdin is not None:
            if order.get("kind") == "form":
                self.waits, self.generation = None, int(order["formation"]["generation"])
            with contextlib.suppress(ConnectionError, RuntimeError, asyncio.TimeoutError):
                self._process.stdin.write(json.dumps(order).encode() + b"\n")
                await asyncio.wait_for(self._process.stdin.drain(), ORDER_TIMEOUT_S)

    async def _read(self, process: asyncio.subprocess.Process, report: Report) -> None:
        self._heard_s = asyncio.get_running_loop().time()
        watching = asyncio.create_task(self._watch(process.pid, report))
        try:
            while line := await self._line(process):
                self._heard_s = asyncio.get_running_loop().time()
                with contextlib.suppress(ValueError):
                    parsed = json.loads(line)
                    if isinstance(parsed, dict) and parsed.get("kind") != "beat":
                        self.waits = parsed if parsed.get("kind") == "waiting" else self.waits
                        await report(self.seat, parsed)
        finally:
            watching.cancel()
        code = process.returncode
        await report(self.seat, self._exit(await process.wait() if code is None else code))

    def _exit(self, code: int) -> dict[str, Any]:
        """The last report; with what is known of its memory, where it was killed."""
        said: dict[str, Any] = {"kind": "exit", "code": code}
        if code == KILLED:
            before, now = self._oom_kills, count_oom_kills()
            oom = None if before is None or now is None else now > before
            said |= {"peak_bytes": self._peak_bytes, "oom": oom}
        return said

    async def _watch(self, pid: int, report: Report) -> None:
        """See how much memory it holds; tell when the rank falls silent, and when it is heard again."""
        silent = False
        while True:
            await asyncio.sleep(SILENT_AFTER_S / 8)
            with contextlib.suppress(psutil.Error):
                self._peak_bytes = max(self._peak_bytes or 0, psutil.Process(pid).memory_info().rss)
            now_silent = asyncio.get_running_loop().time() - self._heard_s > SILENT_AFTER_S
            if now_silent != silent:
                silent = now_silent
                await report(self.seat, {"kind": "silent" if silent else "heard"})

    async def _line(self, process: asyncio.subprocess.Process) -> bytes:
        """The next line of its pipe; empty at the pipe's end, or once the process has ended and says no more."""
        assert process.stdout is not None
        while True:
            reading = asyncio.ensure_future(process.stdout.readline())
            try:
                ended = False
                while not (await asyncio.wait({reading}, timeout=DRAIN_S))[0]:
                    if ended:
                        return b""
                    # Process.wait would wait for the pipe too
                    ended = process.returncode is not None
                return reading.result()
            except ValueError:
                log.warning("rank %d sent a report over %d bytes; skipped", self.seat, REPORT_LIMIT_BYTES)
            finally:
                reading.cancel()

    async def end(self) -> None:
        """Kill what is left of it and its children."""
        if self._reader is not None and asyncio.current_task() is not self._reader:
            self._reader.cancel()
        if self._process is not None:
            await end_group(self._process)


async def end_group(process: asyncio.subprocess.Process) -> None:
    """Kill a process and its whole group, also what outlived it, and wait for it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    # Process.wait would wait for the pipes too, and a child that left the group may hold them
    while process.returncode is None:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    process._transport.close()  # type: ignore[attr-defined]
    await asyncio.sleep(0)


async def run_child(
    module: str,
    order: dict[str, Any],
    tell: Callable[[dict[str, Any]], None],
    *,
    what: str = "preparing the data",
    environment: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Run a child (`python -m module`): one JSON order in, JSON lines out; its last line, of kind "done".

    what: it does, for errors. environment: variables beside this process's own.
    Raises the DaisyError of its error line, or one with its last words.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, start_new_session=True, limit=REPORT_LIMIT_BYTES,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    words = asyncio.create_task(process.stderr.read())
    last: dict[str, Any] = {}
    try:
        process.stdin.write(json.dumps(order).encode() + b"\n")
        async for line in process.stdout:
            with contextlib.suppress(ValueError):  # a library's own print is no report
                parsed = json.loads(line)
                if isinstance(parsed, dict):
                    last = parsed
                    tell(last)
        code = await process.wait()
        if last.get("kind") == "done" and code == 0:
            return last
        if last.get("kind") == "error":
            kind = DataError if last.get("exit") == DataError.exit_code else DaisyError
            raise kind(str(last["what"]), str(last.get("remedy", "")))
        said = (await words).decode(errors="replace").strip().splitlines()
        raise DaisyError(f"{what} failed: {said[-1] if said else f'exit code {code}'}")
    finally:
        words.cancel()
        await end_group(process)
