"""What this machine is: processor, memory, GPUs, versions, network interfaces, name.

Network interfaces are asked for in interfaces.py. Every function blocks for some milliseconds, so call it in a thread.
`root` is the folder that /proc, /sys and /etc are looked for in; what can't be read is unknown, never an error.
"""

import contextlib
import importlib.metadata
import os
import platform
import re
import shlex
import socket
import subprocess
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import psutil  # type: ignore[import-untyped,unused-ignore]

import daisychain
from daisychain.facts import Device, Gpu, Nic, Versions
from daisychain.machine.files import number, read
from daisychain.machine.gpus import judge_gpu
from daisychain.machine.interfaces import os_family, read_machine
from daisychain.machine.nics import describe

ROOT = Path("/")
NEEDED_FLAGS = ("avx", "avx2", "fma")
"""What torch's x86 wheels may use without asking, as /proc/cpuinfo names it."""


def _run(*command: str) -> str:
    """A small system tool's output; empty when it isn't there, fails or takes over 2 s."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=2, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace").strip()


def _plain(text: str) -> str:
    """Without control and format characters and lone surrogates; white space collapsed."""
    kept = (" " if c.isspace() else c for c in text if c.isspace() or unicodedata.category(c) not in _UNPRINTABLE)
    return " ".join("".join(kept).split())


_UNPRINTABLE = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


# --- the device ----------------------------------------------------------------------------------


def read_device(root: Path = ROOT) -> Device:
    """Processor, cores and memory that this process may use, and the GPUs.

    cores_logical respects CPU affinity and a CPU quota, rounded up: more threads than that only hurt.
    memory_bytes respects a memory limit, cgroup v1 or v2.
    """
    cpus = _allowed_cpus()
    logical = max(1, min((cpus and len(cpus)) or os.cpu_count() or 1, _cpu_quota(root) or sys.maxsize))
    physical = _physical_cores(root, cpus)
    limits = [psutil.virtual_memory().total, *_memory_limits(root)]
    return Device(
        cpu=_cpu_model(root),
        cores_physical=min(physical, logical) if physical else None,
        cores_logical=logical,
        memory_bytes=min(limits),
        gpus=_read_gpus(),
        cpu_lacks=_cpu_lacks(read(root / "proc/cpuinfo")),
    )


def _allowed_cpus() -> list[int]:
    """Numbers of the CPUs this process may run on; empty where the system has no such notion."""
    if sys.platform == "linux":
        return sorted(os.sched_getaffinity(0))
    return []


def _physical_cores(root: Path, cpus: Iterable[int]) -> int | None:
    """Cores below the allowed CPUs; two hardware threads of one core name the same siblings."""
    cores = set()
    for cpu in cpus:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        cores.add(read(topology / "core_cpus_list") or read(topology / "thread_siblings_list"))
    if cores and "" not in cores:
        return len(cores)
    cores_of_machine: int | None = psutil.cpu_count(logical=False)
    return cores_of_machine


def _cpu_model(root: Path) -> str:
    if sys.platform == "darwin":
        found = _run("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string")
    else:
        found = _cpu_model_in(read(root / "proc/cpuinfo")) or read(root / "proc/device-tree/model").rstrip("\0")
    return _plain(found or platform.processor() or platform.machine()) or "unknown processor"


def _cpu_model_in(cpuinfo: str) -> str:
    """x86 and some others have 'model name'; a Raspberry Pi has 'Model', POWER 'cpu', older ARM 'Hardware'."""
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, colon, value = line.partition(":")
        if colon and value.strip():
            fields.setdefault(key.strip(), value.strip())
    return next((fields[key] for key in ("model name", "Model", "cpu", "Hardware") if key in fields), "")


def _cpu_lacks(cpuinfo: str) -> tuple[str, ...]:
    """Of NEEDED_FLAGS, what Linux doesn't list for an x86 processor; others call their list 'Features'."""
    found = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    return tuple(flag for flag in NEEDED_FLAGS if flag not in found[1].split()) if found else ()


def cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's cgroup and its ancestors, v2 and v1, whichever of them are visible here."""
    base = root / "sys/fs/cgroup"
    for line in read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            mounts = [base, base / "unified"]
        elif controller in controllers.split(","):
            mounts = [base / controller, base / controllers]
        else:
            continue
        # In a container the path may be the host's, which isn't there; the ancestors' files still are.
        inner = PurePosixPath(path.strip("/"))
        for mount in dict.fromkeys(mounts):
            yield from (mount / folder for folder in (inner, *inner.parents) if ".." not in folder.parts)


def _memory_limits(root: Path) -> list[int]:
    """Bytes; v1 without a limit says a number larger than any memory, v2 says 'max'."""
    files = ("memory.max", "memory.limit_in_bytes")
    found = (number(read(folder / file)) for folder in cgroup_folders(root, "memory") for file in files)
    return [limit for limit in found if limit is not None and limit > 0]


def _cpu_quota(root: Path) -> int | None:
    """Whole cores that the narrowest quota comes to, rounded up; None without one."""
    cores = []
    for folder in cgroup_folders(root, "cpu"):
        quota, _, period = read(folder / "cpu.max").partition(" ")
        pair = (number(quota), number(period))
        if pair == (None, None):
            pair = (number(read(folder / "cpu.cfs_quota_us")), number(read(folder / "cpu.cfs_period_us")))
        if pair[0] and pair[1] and pair[0] > 0 and pair[1] > 0:
            cores.append(-(-pair[0] // pair[1]))
    return min(cores, default=None)


def _read_gpus() -> tuple[Gpu, ...]:
    """NVIDIA's GPUs; none without its driver or library, or when it fails in any way."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # the library's own errors vary with its version; each of them means no GPU here
        return ()
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        torch, build = _torch_version(), _torch_build()
        handles = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount()))
        return tuple(_read_gpu(pynvml, handle, driver, torch, build) for handle in handles)
    except Exception:
        return ()
    finally:
        with contextlib.suppress(Exception):
            pynvml.nvmlShutdown()


def _read_gpu(pynvml: object, handle: object, driver: str, torch: str | None, build: str) -> Gpu:
    def ask(function: str) -> object:
        """One fact; None when this driver doesn't tell it."""
        try:
            return getattr(pynvml, function)(handle)
        except Exception:
            return None

    name = _plain(_text(ask("nvmlDeviceGetName"))) or "NVIDIA GPU"
    memory = getattr(ask("nvmlDeviceGetMemoryInfo"), "total", None)
    pair = ask("nvmlDeviceGetCudaComputeCapability")
    capability = (int(pair[0]), int(pair[1])) if isinstance(pair, tuple | list) and len(pair) == 2 else None
    return Gpu(
        name=name,
        memory_bytes=memory if isinstance(memory, int) else None,
        capability=capability,
        driver=driver,
        verdict=judge_gpu(name, capability, torch, driver, build),
    )


def _text(value: object) -> str:
    """NVML's strings are bytes in old versions of its library."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else ""


# --- versions and name ---------------------------------------------------------------------------


def read_versions(root: Path = ROOT) -> Versions:
    """Versions of what must fit together between nodes; torch's is read without importing it."""
    return Versions(
        daisychain=daisychain.__version__,
        python=platform.python_version(),
        torch=_torch_version(),
        os=_os_name(root),
        os_family=os_family(),
        machine=platform.machine(),
        glibc=_glibc(*platform.libc_ver()),
    )


def _glibc(name: str, version: str) -> tuple[int, int] | None:
    """(2, 31) from what platform.libc_ver says; None for another C library."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found and name == "glibc" else None


def _torch_version() -> str | None:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def _torch_build() -> str:
    """'12.6' for a CUDA build, 'rocm6.4', 'cpu'; empty when unknown. Taken from the text of torch/version.py."""
    try:
        file = importlib.metadata.distribution("torch").locate_file("torch/version.py")
    except importlib.metadata.PackageNotFoundError:
        return ""
    return _build_in(read(Path(str(file))))


def _build_in(version_py: str) -> str:
    found: dict[str, str] = dict(re.findall(r"^(cuda|hip)\s*(?::[^=\n]*)?=\s*(.+?)\s*$", version_py, re.MULTILINE))
    cuda, hip = (found.get(key, "").strip("'\"") for key in ("cuda", "hip"))
    if cuda and cuda != "None":
        return cuda
    if hip and hip != "None":
        return f"rocm{hip}"
    return "cpu" if cuda == "None" else ""


def _os_name(root: Path) -> str:
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}".strip()
    if sys.platform == "win32":
        return f"Windows {platform.version()}".strip()
    for file in ("etc/os-release", "usr/lib/os-release"):
        if name := _pretty_name(read(root / file)):
            return name
    return f"{platform.system()} {platform.release()}".strip()


def _pretty_name(os_release: str) -> str:
    found = re.search(r"^PRETTY_NAME=(.*)$", os_release, re.MULTILINE)
    try:
        return _plain(" ".join(shlex.split(found[1]))) if found else ""
    except ValueError:
        return ""


def host_name() -> str:
    """This machine's short host name, fit for a screen and for mDNS: no control characters, at most 63 bytes."""
    return _short_name(socket.gethostname())


def _short_name(full: str) -> str:
    name = _plain(full).split(".")[0].strip()
    return name.encode()[:63].decode(errors="ignore").strip() or "unnamed"


# --- network interfaces --------------------------------------------------------------------------


def read_nics(root: Path = ROOT) -> tuple[Nic, ...]:
    """Every network interface with its kind, in the system's order, each with its addresses, IPv4 first."""
    return describe(read_machine(root))
