"""One tree of errors, each with its exit code."""

import re

import pytest

from daisychain import errors
from daisychain.errors import BY_EXIT_CODE, DaisyError, PreflightError, about
from daisychain.facts import Verdict


def below(kind: type[DaisyError]) -> set[type[DaisyError]]:
    return {kind}.union(*(below(child) for child in kind.__subclasses__()))


OURS = sorted((kind for kind in below(DaisyError) if kind.__module__ == errors.__name__), key=lambda k: k.__name__)
VERDICTS = [
    Verdict(level="warn", check="torch", reason="torch is old", remedy="Update it", node="a"),
    Verdict(level="refuse", check="os", reason="gloo can't connect them", remedy="Use Linux", node="b"),
]


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
def test_every_error_can_come_back_from_the_link_with_its_exit_code(kind: type[DaisyError]) -> None:
    if issubclass(kind, PreflightError):
        assert kind.exit_code not in BY_EXIT_CODE
    else:
        back = BY_EXIT_CODE[kind.exit_code]
        assert issubclass(kind, back)
        assert back.exit_code == kind.exit_code


def test_the_map_is_true() -> None:
    assert all(kind.exit_code == code for code, kind in BY_EXIT_CODE.items())


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("DaisyError", 1), ("UsageError", 2), ("ConfigError", 2), ("DataError", 2), ("NoNodeError", 3),
        ("PreflightError", 4), ("TrustError", 5), ("ScriptError", 6), ("LinkError", 1),
    ],
)  # fmt: skip
def test_the_exit_codes_are_those_that_are_promised(name: str, code: int) -> None:
    assert getattr(errors, name).exit_code == code


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = set(re.findall(r"(\w+Error)\b", errors.__doc__ or ""))
    assert drawn == {kind.__name__ for kind in OURS}


def test_an_error_says_what_and_what_to_try() -> None:
    assert str(DaisyError("old: the disk is full", "Free some space")) == "old: the disk is full. Free some space"
    assert str(DaisyError("old: the disk is full")) == "old: the disk is full"


def test_a_preflight_error_says_the_worst() -> None:
    error = PreflightError(VERDICTS)
    assert str(error) == "b: gloo can't connect them. Use Linux"
    assert error.verdicts == tuple(VERDICTS)
    assert str(PreflightError(VERDICTS[:1])) == "a: torch is old. Update it"
    assert str(PreflightError([Verdict(level="refuse", check="nic", reason="no NIC")])) == "no NIC"


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("old has 3 MB free", "old has 3 MB free"),
        ("the processor of old (Core 2) has no AVX", "the processor of old (Core 2) has no AVX"),
        ("the disk is full while writing to /home/old/x", "old: the disk is full while writing to /home/old/x"),
        ("its clock is older than old-1's", "old: its clock is older than old-1's"),
        ("", "old: "),
    ],
)
def test_a_reason_gets_its_node_in_front_where_it_does_not_name_it(reason: str, said: str) -> None:
    assert about(Verdict(level="refuse", check="disk", reason=reason, node="old")) == said


def test_a_reason_about_this_machine_stays_as_it_is() -> None:
    assert about(Verdict(level="warn", check="nic", reason="eth0 is down")) == "eth0 is down"
