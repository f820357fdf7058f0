from types import SimpleNamespace

import msgspec

from daisychain.facts import Condition, Device, Gpu, Verdict
from daisychain.tui import presentation as say
from daisychain.tui.presentation.evidence import evidence


def test_it_has_the_raw_values_of_the_node_and_of_no_other(make: SimpleNamespace) -> None:
    found = make.examined(blocked=((2, 0),))
    shut = found.verdicts[-1]
    said = " ".join(say.lines_text(evidence(shut, {"anna"}, found, make.nics("wlan0"), "id-anna")).split())
    for words in (
        shut.remedy, "41 GB, 41200000000 bytes", "processor busy 4%", "torch 2.13.0", "* ✓ ok eth0 ethernet", "wlan0",
        "192.168.1.20/24", "MTU 1500", "✗ old-laptop → anna", "8 physical, 16 logical", "samples/s alone",
    ):  # fmt: skip
        assert words in said, words
    assert "mini-pc → old-laptop" not in said


def test_of_another_node_the_chosen_nic_alone_is_known(make: SimpleNamespace) -> None:
    said = say.lines_text(evidence(None, {"old-laptop"}, make.examined(), make.nics("wlan0"), "id-anna"))
    assert "* ! warn wlp2s0" in said
    assert "daisychain doctor on old-laptop" in said
    assert "wlan0" not in said


def test_unknown_is_shown_as_unknown(make: SimpleNamespace) -> None:
    bad = Verdict(
        level="warn", check="gpu", reason="this torch has no kernels for it", remedy="Install the cu126 build"
    )
    device = Device(
        cpu="i5", cores_physical=None, cores_logical=4, memory_bytes=2**33, gpus=(Gpu(name="GTX 750", verdict=bad),)
    )
    nodes = (make.node(capacity=None, device=device), make.node("old"))
    found = msgspec.structs.replace(make.examined(nodes), conditions=(Condition(clock_s=1.0), None))
    said = " ".join(say.lines_text(evidence(None, {"anna", "old"}, found, None, "")).split())
    assert "None" not in said
    assert "battery –" in said  # noqa: RUF001
    assert "speed –" in said  # noqa: RUF001
    assert "no kernels" in said
    assert "it didn't say what it is like now" in said


def test_of_a_node_that_is_not_there_nothing_is_known(make: SimpleNamespace) -> None:
    assert "wasn't there" in say.lines_text(evidence(None, {"gone"}, make.examined(), None, "id-anna"))
