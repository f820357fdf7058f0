"""The run folder on a real disk."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daisychain.errors import UsageError
from daisychain.facts import NodeStep, RunSpec, RunState
from daisychain.run import folder as folder_module
from daisychain.run.folder import OWN_FILES, RunFolder, read_spec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HOSTILE = [
    'quo"tes', "apo'strophe", "new\nline", "carriage\rreturn", "back\\slash", "tab\there", "del\x7f", "bell\x07",
    "nul\x00", "c1\x85\x9b", "emoji \U0001f600", "grün", "]] # not a comment", '"""', "line\u2028separator", "",
]  # fmt: skip


@pytest.fixture
def made(tmp_path: Path) -> Any:
    one = RunFolder(tmp_path / "runs" / "20250101-train")
    yield one
    one.close()


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def parsed(path: Path) -> dict[str, Any]:
    return tomllib.loads((path / "run.toml").read_bytes().decode())


def test_a_new_folder_has_its_files(made: RunFolder) -> None:
    assert {p.name for p in made.path.iterdir()} == {"checkpoints", "metrics.jsonl", "events.jsonl", "ledger.jsonl"}
    assert (made.path / "checkpoints").is_dir()
    assert {p.name for p in made.path.iterdir() if p.is_file()} <= set(OWN_FILES)


def test_a_folder_is_never_used_twice(made: RunFolder) -> None:
    with pytest.raises(FileExistsError):
        RunFolder(made.path)


def test_a_resumed_run_goes_on_in_its_files(made: RunFolder) -> None:
    made.metric({"v": 1, "step": 1})
    made.event(0.5, "launched")
    made.close()
    again = RunFolder(made.path, again=True)
    again.metric({"v": 1, "step": 2})
    again.close()
    assert [line["step"] for line in lines(made.path / "metrics.jsonl")] == [1, 2]
    assert len(lines(made.path / "events.jsonl")) == 1


def test_a_run_to_resume_is_read_as_it_was_launched(made: RunFolder) -> None:
    spec = RunSpec(job="script", path="/a/train.py", args=("--lr", "0.1"), batch=64, seed=3, nodes=("old",))
    made.launch(spec, {"run": "r", "chain": ["head"], "torch": None})
    assert read_spec(made.path.parent, made.path.name) == spec


def test_a_run_that_is_not_here_cannot_be_resumed_and_the_newest_is_named(made: RunFolder) -> None:
    with pytest.raises(UsageError, match="no run 'x'") as none:
        read_spec(made.path.parent, "x")
    assert "No run was launched" in none.value.remedy
    made.launch(RunSpec(job="script", path="/a"), {})
    with pytest.raises(UsageError) as one:
        read_spec(made.path.parent, "x")
    assert made.path.name in one.value.remedy


@pytest.mark.parametrize("text", ["job =", "job = 3", 'job = "no such job"', 'job = "script"\nseed = "x"'])
def test_a_run_file_that_is_damaged_is_said(made: RunFolder, text: str) -> None:
    (made.path / "run.toml").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="can't be read"):
        read_spec(made.path.parent, made.path.name)


def test_a_steps_line_goes_into_the_ledger_too(made: RunFolder) -> None:
    order = {"epoch": 0, "index": 0, "first": 0, "digest": 7}
    nodes = {"head": {"share": 3, "compute_ms": 1.0}, "old": {"share": 1, "compute_ms": None}}
    made.metric({"v": 1, "step": 1, "batch": 4, "generation": 2, "order": order, "nodes": nodes})
    (line,) = lines(made.path / "ledger.jsonl")
    assert line == {"v": 1, "step": 1, "batch": 4, "generation": 2, **order, "shares": {"head": 3, "old": 1}}
    assert "order" not in lines(made.path / "metrics.jsonl")[0]


def test_what_was_launched_reads_back(made: RunFolder) -> None:
    spec = RunSpec(job="script", path="/a/train.py", args=("--lr", "0.1"), data=("/d",), batch=64, seed=3, equal=True)
    made.launch(spec, {"run": "r", "chain": ["head", "old"], "torch": None, "rate": 0.5})
    read = parsed(made.path)
    assert (read["job"], read["path"], read["args"], read["data"]) == ("script", "/a/train.py", ["--lr", "0.1"], ["/d"])
    assert (read["batch"], read["seed"], read["equal"], read["epochs"]) == (64, 3, True, "")
    assert (read["chain"], read["torch"], read["rate"]) == (["head", "old"], "", 0.5)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_strings_read_back(made: RunFolder, text: str) -> None:
    made.launch(RunSpec(job="script", path=text, args=(text, text)), {"chain": [text]})
    read = parsed(made.path)
    assert read["path"] == text
    assert read["args"] == [text, text]
    assert read["chain"] == [text]
    assert read["seed"] == 0


def test_a_file_name_that_is_no_unicode_is_spelled_out(made: RunFolder) -> None:
    made.launch(RunSpec(job="script", path="/tmp/\udcff.py"), {})
    assert parsed(made.path)["path"] == "/tmp/\\udcff.py"


@given(st.text())
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_reads_back(text: str) -> None:
    assert tomllib.loads(f"key = {folder_module._toml(text)}\n") == {"key": text}


def test_metrics_and_events_are_on_the_disk_at_once(made: RunFolder) -> None:
    made.metric({"v": 1, "step": 1, "loss": 0.5, "nodes": {"head": {"share": 3}}})
    made.metric({"v": 1, "step": 2, "loss": None, "nodes": {}})
    made.event(1.23456, "launched", nodes=["head"], text='new\nline "quoted"')
    assert [line["step"] for line in lines(made.path / "metrics.jsonl")] == [1, 2]
    (event,) = lines(made.path / "events.jsonl")
    assert event == {"v": 1, "time": 1.235, "event": "launched", "nodes": ["head"], "text": 'new\nline "quoted"'}


def test_the_end_writes_both_reports(made: RunFolder) -> None:
    state = RunState(
        id="r", name="train.py", phase="finished", folder=str(made.path), spec=RunSpec(job="script"), step=9, exit=0,
        nodes=(NodeStep(node="head", share=4),),
    )  # fmt: skip
    made.finish(state, {"head": 100.0}, {})
    report = json.loads((made.path / "report.json").read_text(encoding="utf-8"))
    assert (report["exit"], report["steps"], report["folder"]) == (0, 9, str(made.path))
    assert (made.path / "report.md").read_text(encoding="utf-8").startswith("# train.py\n")


def test_what_each_node_chose_by_measurement_is_in_run_toml(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.launch(RunSpec(job="script", target="train.py"), {"run": "run"})
    chosen = {"threads": 2, "fused": True, "plain_ms": 1.5, "fused_ms": 0.5, "bucket_bytes": 500000}
    folder.knobs("old pc.lan", {"kind": "knobs", **chosen, "threads": 1})
    folder.knobs("head", {"kind": "knobs", **chosen})
    folder.knobs("old pc.lan", {"kind": "knobs", **chosen, "fused": False})
    folder.close()
    read = tomllib.loads((tmp_path / "run" / "run.toml").read_text(encoding="utf-8"))
    assert read["knobs"] == {"head": chosen, "old pc.lan": {**chosen, "fused": False}}
    assert read_spec(tmp_path, "run").target == "train.py"
    with pytest.raises(KeyError):
        folder.knobs("head", {"kind": "knobs"})
