"""What goes into a bug report has no addresses and no names."""

import ipaddress
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daisychain.cli.redact import redact

NAMES = ["anna-desk", "anna", "old"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("old (10.0.0.2) can't reach anna-desk (10.0.0.1)", "name-3 (private-1.1) can't reach name-1 (private-1.2)"),
        ("10.0.0.2 10.0.1.2 10.0.0.2", "private-1.1 private-2.1 private-1.1"),
        ("8.8.4.4, 169.254.1.2, 100.64.0.1", "public-1.1, link-local-1.1, carrier-grade-1.1"),
        ("127.0.0.1:47632 and 0.0.0.0/0 and 255.255.255.0", "127.0.0.1:47632 and 0.0.0.0/0 and 255.255.255.0"),
        ("wss://10.0.0.2:47632/", "wss://private-1.1:47632/"),
        ("fe80::1%eth0 2001:db8::5 ::1", "link-local-v6-1%eth0 v6-1 ::1"),
        ("de:ad:be:ef:00:01 and DE-AD-BE-EF-00-01", "mac-1 and mac-1"),
        ("enx001122334455 is up", "enx-mac-1 is up"),
        ("/home/anna/.local/share/daisychain", "/home/name-2/.local/share/daisychain"),
        ("ANNA-DESK, anna-desk.local", "name-1, name-1.local"),
        ("golden threshold", "golden threshold"),
        ("at 12:30:45 torch 2.13.0+cpu, driver 535.183.01", "at 12:30:45 torch 2.13.0+cpu, driver 535.183.01"),
        ("id 0123456789ab of 123456789012 bytes", "id id-1 of 123456789012 bytes"),
        ("root on linux", "root on linux"),
    ],
)
def test_one_text(text: str, expected: str) -> None:
    assert redact(text, [*NAMES, "root", ""]) == expected


def test_a_fingerprint_and_its_beginning_are_the_same_one() -> None:
    whole = "0123456789abcdef" * 4
    assert redact([whole, whole[:12]], []) == ["id-1", "id-1"]


def test_keys_numbers_and_shape_stay() -> None:
    value: dict[str, Any] = {"old": [1, 2.5, None, True, {"address": "10.0.0.2"}], "names": ("old", "new")}
    assert redact(value, NAMES) == {
        "old": [1, 2.5, None, True, {"address": "private-1.1"}], "names": ["name-3", "new"]
    }  # fmt: skip


@given(st.lists(st.ip_addresses() | st.text(), max_size=5))
def test_no_address_gets_through_and_nothing_raises(parts: list[Any]) -> None:
    text = json.dumps(redact([f"to {part} now" for part in parts], ["anna"]))
    for part in parts:
        if isinstance(part, str) or part.is_loopback or part.is_unspecified or str(part).startswith("255."):
            continue
        assert f"to {part} now" not in text, ipaddress.ip_address(part)
