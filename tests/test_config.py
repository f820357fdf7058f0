"""Settings and places."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daisychain.config import Paths, Settings, load, locate, save, save_theme, write_atomically
from daisychain.errors import ConfigError


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = locate({"DAISYCHAIN_HOME": str(tmp_path / "home")})
    made.config.mkdir(parents=True)
    return made


def write(paths: Paths, text: str) -> None:
    paths.config_file.write_text(text, encoding="utf-8")


def test_without_anything_the_defaults_hold(paths: Paths) -> None:
    assert load(paths, {}) == Settings()
    assert Settings().port == 47632


@pytest.mark.parametrize(
    ("file", "environment", "flags", "expected"),
    [
        ("", {}, {}, 47632),
        ("port = 1001", {}, {}, 1001),
        ("port = 1001", {"DAISYCHAIN_PORT": "1002"}, {}, 1002),
        ("port = 1001", {"DAISYCHAIN_PORT": "1002"}, {"port": 1003}, 1003),
        ("port = 1001", {"DAISYCHAIN_PORT": "1002"}, {"port": None}, 1002),
        ("port = 1001", {}, {"port": 1003}, 1003),
        ("", {"DAISYCHAIN_PORT": "1002"}, None, 1002),
    ],
)
def test_flag_over_environment_over_file_over_default(
    paths: Paths, file: str, environment: dict[str, str], flags: dict[str, Any] | None, expected: int
) -> None:
    write(paths, file)
    assert load(paths, environment, flags).port == expected


def test_every_setting_can_come_from_the_environment(paths: Paths) -> None:
    given: dict[str, Any] = {
        "port": 1002, "nic": "eth1", "name": "old", "theme": "light", "mdns": False, "max_bundle_mb": 7, "threads": 3,
        "slowdown": 2.5, "lend_when_used": True, "ranks": 2,
    }  # fmt: skip
    environment = {f"DAISYCHAIN_{name.upper()}": str(value).lower() for name, value in given.items()}
    assert set(given) == set(Settings.__struct_fields__)
    assert msgspec.structs.asdict(load(paths, environment)) == given


def test_an_unknown_key_names_the_file_and_the_key(paths: Paths) -> None:
    write(paths, "prot = 1001\n")
    with pytest.raises(ConfigError) as caught:
        load(paths, {})
    assert str(paths.config_file) in caught.value.what
    assert "'prot'" in caught.value.what
    assert "port" in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('port = "1001"', "port"), ("mdns = 1", "mdns"), ("nic = 3", "nic"), ("port = ", "config.toml"),
        ("port = 1\nport = 2", "config.toml"), ("threads = 1.5", "threads"), ("[port]\nx = 1", "port"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_named_with_what_is_wrong(paths: Paths, text: str, word: str) -> None:
    write(paths, text)
    with pytest.raises(ConfigError) as caught:
        load(paths, {})
    assert str(paths.config_file) in caught.value.what
    assert word in caught.value.what
    assert caught.value.remedy


def test_a_file_that_is_no_text_is_named(paths: Paths) -> None:
    paths.config_file.write_bytes(b"nic = '\xff'\n")
    with pytest.raises(ConfigError, match=r"config\.toml"):
        load(paths, {})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "many"), ("PORT", ""), ("PORT", "0"), ("PORT", "65536"), ("PORT", "-1"), ("MDNS", "maybe"),
        ("SLOWDOWN", "0.5"), ("SLOWDOWN", "-2"), ("THREADS", "1.5"), ("RANKS", "-1"), ("RANKS", "65"),
    ],
)  # fmt: skip
def test_a_wrong_value_of_the_environment_is_refused(paths: Paths, name: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(paths, {f"DAISYCHAIN_{name}": value})
    assert name.lower() in caught.value.what


def test_variables_that_are_no_settings_are_passed_over(paths: Paths) -> None:
    assert load(paths, {"DAISYCHAIN_HOME": "/x", "DAISYCHAIN_NONSENSE": "1"}) == Settings()


# --- places ------------------------------------------------------------------------------------------------


def test_one_variable_puts_everything_below_one_folder(tmp_path: Path) -> None:
    made = locate({"DAISYCHAIN_HOME": str(tmp_path)})
    names = [name for name in dir(Paths) if isinstance(getattr(Paths, name), property)]
    places = [getattr(made, name) for name in (*Paths.__struct_fields__, *names)]
    assert len(places) == 13
    assert all(place.is_relative_to(tmp_path) for place in places)
    assert len(set(places)) == len(places)


def test_otherwise_everything_is_in_the_users_folders() -> None:
    made = locate({})
    assert all("daisychain" in str(getattr(made, name)) for name in Paths.__struct_fields__)


# --- writing -------------------------------------------------------------------------------------------------


def test_saving_a_theme_leaves_the_other_lines_as_they_are(paths: Paths) -> None:
    write(paths, '# mine\nport = 1001  # here too\ntheme = "dark"\n\nnic = "eth1"\n')
    save_theme(paths, "light")
    text = paths.config_file.read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if "theme" not in line] == [
        "# mine", "port = 1001  # here too", "", 'nic = "eth1"',
    ]  # fmt: skip
    assert load(paths, {}) == Settings(port=1001, nic="eth1", theme="light")
    save_theme(paths, "dark")
    assert load(paths, {}).theme == "dark"


def test_a_theme_is_saved_also_where_nothing_is_yet(tmp_path: Path) -> None:
    fresh = locate({"DAISYCHAIN_HOME": str(tmp_path / "fresh")})
    save_theme(fresh, "light")
    assert load(fresh, {}).theme == "light"


def test_a_setting_may_hold_any_text(paths: Paths) -> None:
    write(paths, 'nic = "eth1"\nport = 1001\n')
    for name in ("eth0", 'Ethernet "2" \\ ü', "a\nport = 1"):
        save(paths, "nic", name)
        assert load(paths, {}) == Settings(port=1001, nic=name)


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    file = tmp_path / "new" / "x.json"
    write_atomically(file, "grün", 0o600)
    assert file.read_text(encoding="utf-8") == "grün"
    assert file.stat().st_mode & 0o777 == 0o600
    write_atomically(file, b"\0\1")
    assert file.read_bytes() == b"\0\1"
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("step", ["open", "fsync"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    file = tmp_path / "x.json"
    write_atomically(file, "old")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, step, full)
        with pytest.raises(OSError, match="No space"):
            write_atomically(file, "new")
    assert file.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [file]
