"""What may be typed, and what becomes of it."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from daisychain import __version__
from daisychain.cli.demo import parse_speeds
from daisychain.cli.join import split_address
from daisychain.cli.parser import COMMANDS, parse
from daisychain.cli.run import spec_of
from daisychain.errors import UsageError

# every line of the design's table
LINES = [
    "", "join", "join old", "join old:5 --token T --headless --nic eth0", "invite --uses 3 --minutes 1.5 --json",
    "run train.py", "run tabular x.csv --target y --drop a --drop b", "run demo --nodes head,old --nic eth0 --batch 64",
    "run train.py --data d --sync exact --seed 3 --headless --json --anyway -- --lr 1", "demo --json",
    "demo --speeds 4,2,1 --headless", "nodes --json", "status --json", "doctor --json", "bench --json", "paths --json",
    "stop", "forget old", "agent stop", "predict folder x.csv -o y.csv", "--no-mouse", "--port 5 --nic eth1",
]  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_what_the_design_promises_can_be_typed(line: str) -> None:
    words = parse(line.split())
    assert words.command == ("" if not line or line.startswith("-") else line.split()[0])
    assert words.command in COMMANDS
    assert words.json is ("--json" in line)


def test_every_command_has_its_module() -> None:
    folder = Path(sys.modules["daisychain.cli.parser"].__file__ or "").parent
    for module in COMMANDS.values():
        assert "async def command(words: argparse.Namespace, surface: Surface) -> int" in (
            folder / f"{module}.py"
        ).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "line",
    [
        "fly", "run --resume", "forget", "agent", "agent start", "run x.py --batch many", "nodes --x",
        "run x.py --sync loose", "invite --uses x", "predict folder", "demo 4,2",
    ],
)  # fmt: skip
def test_a_mistake_ends_with_exit_code_2_and_a_usage_line(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(line.split())
    assert caught.value.code == 2
    assert "usage: daisychain" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["-V", "--version", "--no-mouse --version"])
def test_the_version_is_told_wherever_it_is_asked_for(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(line.split())
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"daisychain {__version__}\n"


@pytest.mark.parametrize(
    ("line", "args"),
    [
        ("run x.py", []),
        ("run x.py --", []),
        ("run x.py -- --json --lr 0.1", ["--json", "--lr", "0.1"]),
        ("run x.py --seed 3 -- a -- b", ["a", "--", "b"]),
    ],
)
def test_what_follows_two_dashes_is_the_scripts(line: str, args: list[str]) -> None:
    words = parse(line.split())
    assert words.args == args
    assert not words.json


@pytest.mark.parametrize(
    ("line", "nic", "port"),
    [
        ("nodes", None, None),
        ("--nic eth1 nodes", "eth1", None),
        ("nodes --nic eth2 --port 7", "eth2", 7),
        ("--nic eth1 --port 6 nodes --nic eth2", "eth2", 6),
    ],
)
def test_what_is_typed_before_a_command_holds_unless_it_says_otherwise(
    line: str, nic: str | None, port: int | None
) -> None:
    words = parse(line.split())
    assert (getattr(words, "nic", None), getattr(words, "port", None)) == (nic, port)


def test_typing_is_quick_and_loads_no_torch() -> None:
    code = "import sys; from daisychain.cli.parser import parse; parse(['nodes']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# --- a run's specification -----------------------------------------------------------------------------------------


def words_of(line: str) -> argparse.Namespace:
    return parse(["run", *line.split()])


def test_a_script_and_everything_that_can_be_said_about_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = "train.py --data d --data /e --nodes a,,b --batch 64 --epochs 2 --seed 5 --equal -- --lr 1"
    spec = spec_of(words_of(line))
    here = tmp_path.resolve()
    assert (spec.job, spec.path, spec.data) == ("script", str(here / "train.py"), (str(here / "d"), "/e"))
    assert (spec.nodes, spec.batch, spec.epochs, spec.seed, spec.equal) == (("a", "b"), 64, 2, 5, True)
    assert spec.args == ("--lr", "1")


def test_a_table_and_the_demo() -> None:
    table = spec_of(words_of("tabular /d/x.csv --target y --drop a --drop b"))
    assert (table.job, table.path, table.target, table.drop) == ("tabular", "/d/x.csv", "y", ("a", "b"))
    demo = spec_of(words_of("demo"))
    assert (demo.job, demo.path, demo.nodes) == ("demo", "", ())


@pytest.mark.parametrize(("line", "word"), [("x.py y.csv", "y.csv"), ("tabular", "CSV")])
def test_what_makes_no_sense_is_said(line: str, word: str) -> None:
    with pytest.raises(UsageError, match=word) as caught:
        spec_of(words_of(line))
    assert caught.value.remedy


# --- addresses and speeds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ("", 0)),
        ("old", ("old", 0)),
        ("old:5", ("old", 5)),
        ("10.0.0.2", ("10.0.0.2", 0)),
        ("10.0.0.2:47632", ("10.0.0.2", 47632)),
        ("old.local:65535", ("old.local", 65535)),
        ("::1", ("::1", 0)),
        ("fe80::1", ("fe80::1", 0)),
        ("[::1]", ("::1", 0)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_an_address_is_a_host_and_perhaps_a_port(text: str, expected: tuple[str, int]) -> None:
    assert split_address(text) == expected


@pytest.mark.parametrize("text", ["old:", "old:x", "old:0", "old:65536", "old:-1", "old:1.5", "old:²", "[::1]:x"])
def test_a_wrong_port_is_said(text: str) -> None:
    with pytest.raises(UsageError, match="is not HOST:PORT"):
        split_address(text)


@pytest.mark.parametrize(
    ("text", "expected"), [("4,2,1", [4, 2, 1]), ("1", [1]), (" 3 , 1.5", [3, 1.5]), ("50,1", [50, 1])]
)
def test_speeds_are_numbers(text: str, expected: list[float]) -> None:
    assert parse_speeds(text) == expected


@pytest.mark.parametrize("text", ["", "fast", "4,,1", "0", "-1", "4,-2", "51,1", "1,2,3,4,5,6,7", "inf", "nan", "1e9"])
def test_other_speeds_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--speeds is"):
        parse_speeds(text)


# --- what a run is launched with ----------------------------------------------------------------------------------


def test_a_run_to_resume_is_named_by_its_folder() -> None:
    for name in ("20250101-train", "/home/x/runs/20250101-train", "20250101-train/"):
        spec = spec_of(parse(["run", "--resume", name, "--nodes", "old, nuc"]))
        assert (spec.resume, spec.path, spec.nodes) == ("20250101-train", "", ("old", "nuc"))


@pytest.mark.parametrize(
    ("line", "words"), [("run", "nothing to train"), ("run x.py --resume r", "--resume takes no script")]
)
def test_a_run_of_nothing_or_of_too_much_is_refused(line: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        spec_of(parse(line.split()))
    assert refused.value.remedy


def test_a_way_to_sync_that_there_is_none_of_is_refused_with_those_there_are(capsys):
    for good in ("exact", "bf16", "local", "local:50"):
        assert parse(["run", "train.py", "--sync", good]).sync == good
    with pytest.raises(SystemExit) as end:
        parse(["run", "train.py", "--sync", "local:x"])
    assert end.value.code == 2
    assert "local:H" in capsys.readouterr().err
