import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from daisychain.errors import DataError, UsageError
from daisychain.facts import RunSpec
from daisychain.tui.form import LaunchForm, equivalent_command, parse_address, path_problem, spec_of

HERE = Path("/home/anna")


def test_the_form_as_it_opens_is_the_demo_job() -> None:
    assert spec_of(LaunchForm(), HERE) == RunSpec(job="demo")
    assert equivalent_command(RunSpec(job="demo")) == "daisychain run demo"


def test_a_full_form_is_a_whole_command() -> None:
    form = LaunchForm(
        job="script",
        path="my train.py",
        data="'d 1' d2",
        args="--lr 1e-3",
        nodes="anna, old",
        batch="256",
        epochs="3",
        seed="7",
    )
    spec = spec_of(form, HERE)
    assert spec.path == "/home/anna/my train.py"
    assert spec.data == ("/home/anna/d 1", "/home/anna/d2")
    command = equivalent_command(spec)
    assert shlex.split(command) == [
        "daisychain", "run", "/home/anna/my train.py", "--data", "/home/anna/d 1", "--data", "/home/anna/d2",
        "--nodes", "anna,old", "--batch", "256", "--epochs", "3", "--seed", "7", "--", "--lr", "1e-3",
    ]  # fmt: skip


def test_fields_of_another_job_are_left_out() -> None:
    assert spec_of(LaunchForm(job="demo", path="x.py", target="y", args="'"), HERE) == RunSpec(job="demo")
    tabular = spec_of(LaunchForm(job="tabular", path="~/d.csv", target=" price ", args="a b"), HERE)
    assert tabular == RunSpec(job="tabular", path=str(Path.home() / "d.csv"), target="price")
    assert equivalent_command(tabular).endswith("/d.csv --target price")


@pytest.mark.parametrize(
    ("form", "field"),
    [
        (LaunchForm(job="script"), "path"),
        (LaunchForm(job="tabular", path="d.csv"), "target"),
        (LaunchForm(batch="0"), "batch"),
        (LaunchForm(batch="²"), "batch"),
        (LaunchForm(epochs="-1"), "epochs"),
        (LaunchForm(seed="1.5"), "seed"),
        (LaunchForm(job="script", path="a", args='"'), "args"),
        (LaunchForm(nodes="nobody"), "nobody"),
        (LaunchForm(batch="9" * 5000), "batch"),
        (LaunchForm(job="script", path="~nosuchuser/x.py"), "nosuchuser"),
        (LaunchForm(job="script", path="a\0b"), "path"),
    ],
)
def test_what_cannot_be_right_names_its_field(form: LaunchForm, field: str, make: SimpleNamespace) -> None:
    with pytest.raises(UsageError) as caught:
        spec_of(form, HERE, make.world())
    assert field in caught.value.what
    assert caught.value.remedy


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    script.write_text("")
    assert path_problem(RunSpec(job="script", path=str(script), data=(str(tmp_path),))) is None
    assert path_problem(RunSpec(job="demo")) is None
    for spec in (
        RunSpec(job="script", path=str(tmp_path / "no.py")),
        RunSpec(job="script", path=str(tmp_path)),
        RunSpec(job="script", path=str(script), data=(str(tmp_path / "no"),)),
        RunSpec(job="script", path=str(tmp_path / ("n" * 300))),
    ):
        problem = path_problem(spec)
        assert isinstance(problem, DataError)
        assert str(tmp_path) in problem.what


@pytest.mark.parametrize(
    ("typed", "address"),
    [
        (" 192.168.1.20 ", ("192.168.1.20", 47632)), ("anna.local:5000", ("anna.local", 5000)),
        ("[fe80::1]:5000", ("fe80::1", 5000)), ("fe80::1", ("fe80::1", 47632)), ("[::1]", ("::1", 47632)),
    ],
)  # fmt: skip
def test_addresses(typed: str, address: tuple[str, int]) -> None:
    assert parse_address(typed, 47632) == address


@pytest.mark.parametrize(
    "typed", ["", "  ", ":5000", "a b", "anna:0", "anna:65536", "anna:x", "a\x1bb", "anna:²", "anna:" + "9" * 5000]
)
def test_what_is_no_address(typed: str) -> None:
    with pytest.raises(UsageError):
        parse_address(typed, 47632)
