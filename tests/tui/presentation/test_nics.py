from types import SimpleNamespace

import msgspec
import pytest

from daisychain.facts import Nic, Verdict
from daisychain.link.messages import Nics
from daisychain.tui import presentation as say
from daisychain.tui.presentation.nics import about_nic, nic_rows, unusable
from daisychain.tui.text import line_width, plain

DEAD = Verdict(level="refuse", check="nic", reason="docker0 reaches this machine's containers alone")


@pytest.fixture
def nics(make: SimpleNamespace) -> Nics:
    two = make.nics("eth1")
    bridge = Nic(name="docker0", kind="container")
    return msgspec.structs.replace(two, nics=(*two.nics, bridge), verdicts=(*two.verdicts, DEAD))


def test_each_has_its_level_and_the_one_in_use_a_star(nics: Nics) -> None:
    assert [plain(row).split() for _, row in nic_rows(nics, 70)] == [
        ["*", "✓", "ok", "eth0", "ethernet", "192.168.1.20"],
        ["✓", "ok", "eth1", "ethernet", "192.168.2.20"],
        ["✗", "refuse", "docker0", "container", "no", "address"],
    ]
    assert unusable(nics) == {"docker0"}


@pytest.mark.parametrize("cells", [40, 70, 100])
def test_rows_fit(make: SimpleNamespace, cells: int) -> None:
    assert all(line_width(row) <= cells for _, row in nic_rows(make.nics("長" * 40, "x" * 99), cells))


def test_choosing_says_from_when_it_counts_and_what_it_costs(nics: Nics) -> None:
    assert "in use" in say.lines_text(about_nic(nics, "eth0"))
    said = say.lines_text(about_nic(nics, "eth1"))
    assert "next start" in said
    assert "join them again" in said
    assert "arrow keys" in say.lines_text(about_nic(nics, None))
