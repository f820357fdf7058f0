"""From what was asked for to what is shipped."""

from pathlib import Path
from typing import Any

import pytest

from daisychain.agent import launch
from daisychain.agent.launch import check_spec, folder_name, judge_script, pack_job, pack_script, run_name
from daisychain.config import Settings
from daisychain.errors import DataError, ScriptError, UsageError
from daisychain.facts import RunSpec


def script(tmp_path: Path, text: str | bytes) -> RunSpec:
    path = tmp_path / "train.py"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return RunSpec(job="script", path=str(path))


def test_a_good_script_is_not_run_by_the_check(tmp_path: Path) -> None:
    check_spec(script(tmp_path, "raise SystemExit('it was run')\n"), "head")


@pytest.mark.parametrize(
    ("text", "line"),
    [("x = 1\ny = (\n", 2), ("def f():\n    pass\n\nfor\n", 4), ("if True:\npass\n", 2), ("print 'hello'\n", 1)],
)
def test_a_syntax_error_has_its_line(tmp_path: Path, text: str, line: int) -> None:
    with pytest.raises(ScriptError, match=rf"^head: train\.py:{line}: SyntaxError: \S") as caught:
        check_spec(script(tmp_path, text), "head")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"x = '\xff'\n", b"\0\0\0", b"# coding: nonsense\n"])
def test_what_is_no_python_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises((ScriptError, DataError), match="head"):
        check_spec(script(tmp_path, content), "head")


@pytest.mark.parametrize("path", ["", "/nowhere/train.py", "nul\0byte.py"])
def test_a_missing_file_is_named(path: str) -> None:
    with pytest.raises(DataError, match="no such file") as caught:
        check_spec(RunSpec(job="script", path=path), "head")
    assert (path or "no file given") in caught.value.what


def test_a_folder_is_no_script(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a file"):
        check_spec(RunSpec(job="script", path=str(tmp_path)), "head")


def test_a_table_needs_a_target(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text("a,b\n", encoding="utf-8")
    with pytest.raises(UsageError, match="--target"):
        check_spec(RunSpec(job="tabular", path=str(file)), "head")
    check_spec(RunSpec(job="tabular", path=str(file), target="b"), "head")


@pytest.mark.parametrize("fields", [{"batch": 0}, {"batch": -4}, {"epochs": 0}])
def test_a_number_below_one_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"--{next(iter(fields))} is"):
        check_spec(RunSpec(job="demo", **fields), "head")


@pytest.mark.parametrize("sync", ["", "none", "local:0", "exact:3"])
def test_a_way_to_sync_that_there_is_none_of_is_refused(sync: str) -> None:
    with pytest.raises(UsageError, match="is no way to sync"):
        check_spec(RunSpec(job="demo", sync=sync), "head")


@pytest.mark.parametrize("ranks", [-1, 65])
def test_a_number_of_ranks_that_no_node_can_have_is_refused(ranks: int) -> None:
    with pytest.raises(UsageError, match=f"--ranks is {ranks}"):
        check_spec(RunSpec(job="demo", ranks=ranks), "head")
    check_spec(RunSpec(job="demo", ranks=64), "head")


def test_the_demo_needs_no_file() -> None:
    check_spec(RunSpec(job="demo"), "head")


def test_a_script_is_judged_by_its_text_with_name_and_line(tmp_path: Path) -> None:
    text = "# coding: latin-1\n# \xe9\nimport daisychain\nfrom torch import distributed\ndistributed.barrier()\n"
    (verdict,) = judge_script(script(tmp_path, text.encode("latin-1")))
    assert (verdict.level, verdict.check) == ("refuse", "script")
    assert verdict.reason.startswith("train.py:5: barrier ")


@pytest.mark.parametrize("content", [b"x = (", b"x = '\xff'\n", b"\0", b"# coding: nonsense\n"])
def test_of_what_is_no_python_the_judge_says_nothing(tmp_path: Path, content: bytes) -> None:
    assert judge_script(script(tmp_path, content)) == ()


def test_only_scripts_that_are_there_are_judged(tmp_path: Path) -> None:
    assert judge_script(RunSpec(job="script", path=str(tmp_path / "none.py"))) == ()
    spec = script(tmp_path, "import torch\n")
    assert judge_script(spec)
    assert judge_script(RunSpec(job="tabular", path=spec.path, target="y")) == ()
    assert judge_script(RunSpec(job="demo")) == ()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/a/My Train_2.py", "S-my-train-2"),
        ("/a/обучение.py", "S-run"),
        ("/a/" + "x" * 60 + ".py", "S-" + "x" * 24),
        ("/a/...py", "S-run"),
        ("/a/-.py", "S-run"),
    ],
)
def test_a_runs_folder_has_a_plain_name(path: str, expected: str) -> None:
    assert folder_name(RunSpec(job="script", path=path), "S") == expected


def test_a_run_is_called_after_its_file() -> None:
    assert run_name(RunSpec(job="script", path="/a/train.py")) == "train.py"
    assert run_name(RunSpec(job="demo")) == "demo"


def test_a_script_is_shipped_with_its_folder_even_if_it_is_ignored(tmp_path: Path) -> None:
    spec = script(tmp_path, "")
    for name in ("model.py", "train.csv", "other.csv"):
        (tmp_path / name).touch()
    (tmp_path / ".gitignore").write_text("train.py\n*.csv\n", encoding="utf-8")
    cargo = pack_script(RunSpec(job="script", path=spec.path, data=(str(tmp_path / "train.csv"),)), Settings())
    assert sorted(cargo.files) == ["model.py", "train.csv", "train.py"]
    assert cargo.script == "train.py"


async def test_a_job_is_prepared_by_its_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    async def run_child(module: str, order: dict[str, Any], tell: Any) -> dict[str, Any]:
        asked.update(order, module=module)
        return {"kind": "done", "files": ["x.bin"]}

    monkeypatch.setattr(launch, "run_child", run_child)
    spec = RunSpec(job="tabular", path="/d/x.csv", target="y", drop=("z",), seed=4)
    cargo = await pack_job(spec, tmp_path / "data", lambda _: None)
    assert asked == {
        "module": "daisychain.jobs.tabular.prepare", "csv": "/d/x.csv", "target": "y", "drop": ["z"], "seed": 4,
        "out": str(tmp_path / "data"),
    }  # fmt: skip
    assert cargo.files == {"data/x.bin": tmp_path / "data" / "x.bin"}
    assert cargo.script == "job:tabular"
    assert (tmp_path / "data").is_dir()
