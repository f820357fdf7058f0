"""The probe against this machine, and against folders that stand in for /proc, /sys and /etc."""

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

import daisychain
from daisychain.facts import Address
from daisychain.machine import probe
from daisychain.machine.nics import choose

linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux's files")


def write(root: Path, **files: str) -> Path:
    """Files below root; __ in a name stands for /, so that names can be keywords."""
    for name, text in files.items():
        file = root / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


# --- this machine ---


def test_this_machine_makes_sense() -> None:
    started = time.perf_counter()
    device, versions, nics, name = probe.read_device(), probe.read_versions(), probe.read_nics(), probe.host_name()
    assert time.perf_counter() - started < 3  # a tenth of that alone; tests run beside others
    assert device.cpu
    assert 1 <= device.cores_logical <= (os.cpu_count() or 1)
    assert device.cores_physical is None or 1 <= device.cores_physical <= device.cores_logical
    assert 2**26 < device.memory_bytes <= psutil.virtual_memory().total
    assert versions.daisychain == daisychain.__version__
    assert re.match(r"\d+\.\d+", versions.python)
    assert versions.torch is None or re.match(r"\d+\.\d+", versions.torch)
    assert versions.os
    assert 0 < len(name.encode()) <= 63
    loopback = next(nic for nic in nics if nic.kind == "loopback")
    assert loopback.addresses[0] == Address(ip="127.0.0.1", prefix=8)
    assert [nic.name for nic in nics][: len(socket.if_nameindex())] == [n for _, n in socket.if_nameindex()]
    assert choose(nics)[0] is not None


def test_torch_is_not_imported() -> None:
    code = (
        "import sys; from daisychain.machine import probe, capacity, nics, gpus;"
        "probe.read_device(); probe.read_versions(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


@linux
def test_affinity_is_respected() -> None:
    code = (
        "import os; from daisychain.machine import probe; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]);"
        "d = probe.read_device(); print(d.cores_logical, d.cores_physical)"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=60, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["1", "1"]


# --- the device ---

CPUINFO = {
    "processor\t: 0\nmodel\t\t: 167\nmodel name\t: Intel(R)  Core(TM) i5\n": "Intel(R) Core(TM) i5",
    "processor\t: 0\nBogoMIPS\t: 108\n\nHardware\t: BCM2835\nModel\t\t: Raspberry Pi 4 B\n": "Raspberry Pi 4 B",
    "processor\t: 0\ncpu\t\t: POWER9, altivec supported\n": "POWER9, altivec supported",
    "model name\t: Evil\x1b[2J\x00CPU\n": "Evil[2JCPU",
}


@linux
@pytest.mark.parametrize("text", CPUINFO)
def test_the_processor_is_named(tmp_path: Path, text: str) -> None:
    assert probe.read_device(write(tmp_path, proc__cpuinfo=text)).cpu == CPUINFO[text]


@linux
def test_a_machine_that_tells_nothing_is_no_error(tmp_path: Path) -> None:
    device = probe.read_device(tmp_path)
    assert device.cpu
    assert device.memory_bytes == psutil.virtual_memory().total
    assert [nic.kind for nic in probe.read_nics(tmp_path) if nic.addresses and nic.name == "lo"] == ["loopback"]
    assert probe.read_versions(tmp_path).os


@linux
def test_hardware_threads_are_no_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_allowed_cpus", lambda: [0, 1, 2, 3])
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        write(tmp_path, **{f"sys__devices__system__cpu__cpu{cpu}__topology__thread_siblings_list": siblings})
    device = probe.read_device(tmp_path)
    assert (device.cores_logical, device.cores_physical) == (4, 2)


MB = 1024 * 1024
MEMORY = {
    "v2": ({"proc__self__cgroup": "0::/a/b\n", "sys__fs__cgroup__a__b__memory.max": f"{300 * MB}\n"}, 300),
    "v2, the parent's": ({"proc__self__cgroup": "0::/a/b\n", "sys__fs__cgroup__a__memory.max": f"{200 * MB}"}, 200),
    "v2, none": ({"proc__self__cgroup": "0::/a\n", "sys__fs__cgroup__a__memory.max": "max\n"}, None),
    "v2 in a container": ({"proc__self__cgroup": "0::/\n", "sys__fs__cgroup__memory.max": f"{100 * MB}\n"}, 100),
    "v1": (
        {"proc__self__cgroup": "4:memory:/x\n", "sys__fs__cgroup__memory__x__memory.limit_in_bytes": f"{99 * MB}"},
        99,
    ),
    "v1 in a container": (
        {"proc__self__cgroup": "4:memory:/docker\n", "sys__fs__cgroup__memory__memory.limit_in_bytes": f"{88 * MB}"},
        88,
    ),
    "v1, none": (
        {"proc__self__cgroup": "4:memory:/\n", "sys__fs__cgroup__memory__memory.limit_in_bytes": "9223372036854771712"},
        None,
    ),
    "nonsense": ({"proc__self__cgroup": "what\n0::/../..\n::\n"}, None),
}  # fmt: skip


@linux
@pytest.mark.parametrize("case", MEMORY)
def test_memory_limits(tmp_path: Path, case: str) -> None:
    files, megabytes = MEMORY[case]
    expected = megabytes * MB if megabytes else psutil.virtual_memory().total
    assert probe.read_device(write(tmp_path, **files)).memory_bytes == expected


QUOTAS = {
    "v2": ({"proc__self__cgroup": "0::/a\n", "sys__fs__cgroup__a__cpu.max": "150000 100000\n"}, 2),
    "v2, less than a core": ({"proc__self__cgroup": "0::/a\n", "sys__fs__cgroup__a__cpu.max": "20000 100000\n"}, 1),
    "v2, none": ({"proc__self__cgroup": "0::/a\n", "sys__fs__cgroup__a__cpu.max": "max 100000\n"}, 8),
    "v1": (
        {
            "proc__self__cgroup": "1:cpu,cpuacct:/a\n",
            "sys__fs__cgroup__cpu,cpuacct__a__cpu.cfs_quota_us": "60000",
            "sys__fs__cgroup__cpu,cpuacct__a__cpu.cfs_period_us": "20000",
        },
        3,
    ),
    "v1, none": (
        {
            "proc__self__cgroup": "1:cpu:/\n",
            "sys__fs__cgroup__cpu__cpu.cfs_quota_us": "-1",
            "sys__fs__cgroup__cpu__cpu.cfs_period_us": "100000",
        },
        8,
    ),
}


@linux
@pytest.mark.parametrize("case", QUOTAS)
def test_cpu_quotas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.setattr(probe, "_allowed_cpus", lambda: list(range(8)))
    files, cores = QUOTAS[case]
    assert probe.read_device(write(tmp_path, **files)).cores_logical == cores


class FakeNvml:
    """NVML with one old card; what `broken` names fails."""

    def __init__(self, *broken: str) -> None:
        self.broken = broken
        self.closed = False

    def __getattr__(self, name: str) -> object:
        answers: dict[str, object] = {
            "nvmlSystemGetDriverVersion": b"535.183.01",
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetName": b"GeForce GTX 1060",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=6 * 2**30),
            "nvmlDeviceGetCudaComputeCapability": (6, 1),
        }

        def ask(*_: object) -> object:
            if name in self.broken:
                raise RuntimeError("NVML says no")
            self.closed = self.closed or name == "nvmlShutdown"
            return answers.get(name)

        return ask


def test_a_gpu_is_read_and_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(probe, "_torch_version", lambda: "2.13.0+cu130")
    monkeypatch.setattr(probe, "_torch_build", lambda: "13.0")
    (gpu,) = probe.read_device().gpus
    assert (gpu.name, gpu.memory_bytes, gpu.capability) == ("GeForce GTX 1060", 6 * 2**30, (6, 1))
    assert gpu.driver == "535.183.01"
    assert gpu.verdict.level == "warn"
    assert nvml.closed


def test_a_gpu_that_tells_little_is_shown_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetCudaComputeCapability", "nvmlShutdown")
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    (gpu,) = probe.read_device().gpus
    assert (gpu.memory_bytes, gpu.capability) == (None, None)


@pytest.mark.parametrize("broken", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"])
def test_a_broken_driver_means_no_gpu(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(broken))
    assert probe.read_device().gpus == ()


def test_no_library_means_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert probe.read_device().gpus == ()


# --- versions and name ---


def test_torch_s_build_is_read_from_its_text() -> None:
    assert probe._build_in("cuda: Optional[str] = '12.6'\nhip: Optional[str] = None\n") == "12.6"
    assert probe._build_in("cuda = None\nhip: Optional[str] = '6.4.2'\n") == "rocm6.4.2"
    assert probe._build_in("__version__ = '2'\ncuda: Optional[str] = None\nhip: Optional[str] = None") == "cpu"
    assert probe._build_in("") == ""


OS_RELEASE = {
    'NAME="x"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n': "Debian GNU/Linux 12 (bookworm)",
    "PRETTY_NAME=Alpine\n": "Alpine",
    "PRETTY_NAME='Odd \x1b[1m'\n": "Odd [1m",
}


@linux
@pytest.mark.parametrize("text", OS_RELEASE)
def test_the_system_is_named(tmp_path: Path, text: str) -> None:
    assert probe.read_versions(write(tmp_path, **{"etc__os-release": text})).os == OS_RELEASE[text]
    assert probe._pretty_name('PRETTY_NAME="open') == ""


HOSTS = {
    "old.lan": "old",
    "old": "old",
    "": "unnamed",
    ".lan": "unnamed",
    "a\x00b\x1b[31m\u202ec": "ab[31mc",
    "ü" * 40: "ü" * 31,
    "büro-\udcff": "büro-",
    "two\nlines": "two lines",
}


@pytest.mark.parametrize("full", HOSTS)
def test_host_names(monkeypatch: pytest.MonkeyPatch, full: str) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: full)
    assert probe.host_name() == HOSTS[full]


@pytest.mark.parametrize(
    ("cpuinfo", "lacks"),
    [
        ("flags\t\t: fpu sse4_2 avx avx2 fma\n", ()),
        ("flags\t\t: fpu sse4_2 avx\nvmx flags\t: avx2\n", ("avx2", "fma")),
        ("flags\t\t: fpu lm ssse3\nflags\t\t: fpu lm ssse3\n", ("avx", "avx2", "fma")),
        ("Features\t: fp asimd\n", ()),
        ("", ()),
    ],
)
def test_what_a_processor_lacks_is_told_where_linux_lists_what_it_has(cpuinfo: str, lacks: tuple[str, ...]) -> None:
    assert probe._cpu_lacks(cpuinfo) == lacks


@pytest.mark.parametrize(
    ("said", "expected"),
    [(("glibc", "2.36"), (2, 36)), (("glibc", "2.9"), (2, 9)), (("", ""), None), (("musl", "1.2"), None)],
)
def test_only_a_glibc_has_a_version_here(said: tuple[str, str], expected: tuple[int, int] | None) -> None:
    assert probe._glibc(*said) == expected
