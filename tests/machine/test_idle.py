"""Whether the owner uses the machine, from what systems say, and what follows."""

import os
from pathlib import Path

import pytest

from daisychain.machine import idle
from daisychain.machine.idle import Owner, from_ioreg, from_logind, from_terminals

GREETER = """Type=wayland
Class=greeter
IdleHint=no
IdleSinceHintMonotonic=990000000
"""
LEFT = """Type=wayland
Class=user
IdleHint=yes
IdleSinceHintMonotonic=700000000
"""
BACK = """Type=x11
Class=user
IdleHint=no
IdleSinceHintMonotonic=600000000
"""
SILENT = """Type=x11
Class=user
IdleHint=no
IdleSinceHintMonotonic=0
"""
SSH = """Type=tty
Class=user
IdleHint=no
IdleSinceHintMonotonic=999000000
"""


@pytest.mark.parametrize(
    ("text", "idle_s"),
    [
        ("", None),
        ("Failed to connect to bus", None),
        (LEFT, 300.0),
        (BACK, 0.0),
        (SILENT, None),
        (SSH, None),
        (GREETER, None),
        ("\n".join([LEFT, BACK]), 0.0),
        ("\n".join([GREETER, SSH, LEFT]), 300.0),
        (LEFT.replace("700000000", "2000000000"), 0.0),
        (LEFT.replace("700000000", "n/a"), None),
    ],
)
def test_a_desktop_says_when_its_user_left(text: str, idle_s: float | None) -> None:
    assert from_logind(text, 1000.0) == idle_s


@pytest.mark.parametrize(
    ("times", "idle_s"), [((), None), ((900.0, 990.0, 0.0), 10.0), ((1000.0,), 0.0), ((1001.0,), None)]
)
def test_the_terminal_read_last_counts(times: tuple[float, ...], idle_s: float | None) -> None:
    assert from_terminals(times, 1000.0) == idle_s


IOREG = """
    | +-o IOHIDSystem  <class IOHIDSystem, id 0x100000477, registered, matched, active, busy 0 (0 ms), retain 17>
    |   {
    |     "HIDParameters" = {"EjectDelay"=0,"HIDDefaultParameters"=Yes}
    |     "HIDIdleTime" = 61518925417
    |     "IOUserClientClass" = "IOHIDUserClient"
    |   }
"""


def test_macos_counts_nanoseconds() -> None:
    assert from_ioreg(IOREG) == pytest.approx(61.518925417)
    assert from_ioreg("") is None


def test_terminals_at_which_nobody_sits_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pts").mkdir()
    ages = {"tty0": 1, "ttyS0": 1, "pts/ptmx": 1, "tty1": 500, "pts/0": 90}
    for name, age_s in ages.items():
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1000.0 - age_s, 1000.0))
    monkeypatch.setattr(idle, "_run", lambda *_: "")
    monkeypatch.setattr(idle.sys, "platform", "linux")
    monkeypatch.setattr(idle.time, "time", lambda: 1000.0)
    assert idle.read_idle_s(tmp_path) == 90.0
    assert idle.read_idle_s(tmp_path / "none") is None


def test_each_session_is_asked_for_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[str, ...]] = []

    def run(*command: str) -> str:
        asked.append(command)
        return "   2 1000 anna seat0 tty2\n c1  120 gdm  seat0 tty1\n" if "list-sessions" in command else BACK

    monkeypatch.setattr(idle, "_run", run)
    monkeypatch.setattr(idle.sys, "platform", "linux")
    assert idle.read_idle_s(tmp_path) == 0.0
    assert asked[1][-2:] == ("2", "c1")


def test_a_system_that_is_not_known_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle.sys, "platform", "win32")
    assert idle.read_idle_s() is None


def test_a_used_machine_is_back_5_minutes_after_the_last_input() -> None:
    owner, had = Owner(), []
    for idle_s in (70.0, 59.0, 200.0, 299.0, 301.0, 70.0, 3.0, None):
        owner = owner.seen(idle_s)
        had.append(owner.has_it)
    assert had == [False, True, True, True, False, False, True, False]


def test_what_the_owner_took_stays_his_until_he_gives_it_back() -> None:
    owner = Owner().says(taken=True)
    assert owner.seen(9999.0).has_it
    assert owner.seen(None).has_it
    assert not owner.seen(9999.0).says(taken=False).has_it


def test_giving_it_back_while_using_it_counts_until_he_has_left_and_come_again() -> None:
    owner = Owner().seen(1.0).says(taken=False)
    assert not owner.has_it
    assert not owner.seen(2.0).has_it
    assert owner.seen(400.0).seen(1.0).has_it
