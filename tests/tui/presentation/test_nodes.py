from types import SimpleNamespace

import msgspec
import pytest

from daisychain.facts import Device, Gpu, Verdict
from daisychain.tui import presentation as say
from daisychain.tui.text import line_width


@pytest.mark.parametrize("cells", [54, 74, 94, 114, 200])
def test_rows_of_the_node_table_are_as_wide_as_its_header(make: SimpleNamespace, cells: int) -> None:
    nodes = (
        *make.three(),
        make.node("日本語のとても長い名前のコンピューター" * 3, capacity=None, state="measuring", nic="x" * 40),
    )
    world = make.world(nodes=nodes)
    wide = line_width(say.node_header(cells))
    assert wide <= cells
    for node in nodes:
        assert line_width(say.node_row(node, world, cells)) == wide


def test_a_gpu_that_is_not_used_is_not_shown_as_the_device_but_explained(make: SimpleNamespace) -> None:
    old = Verdict(
        level="warn", check="gpu", reason="this torch has no kernels for it", remedy="Install the cu126 build"
    )
    gpu = Gpu(name="GeForce GTX 750", memory_bytes=2 * 2**30, capability=(5, 0), verdict=old)
    device = Device(cpu="i5", cores_physical=4, cores_logical=4, memory_bytes=8 * 2**30, gpus=(gpu,))
    node = make.node(device=device)
    assert say.device_text(device) == "4 cores, 8 GB"
    assert "no kernels" in say.lines_text(say.node_detail(node))
    good = msgspec.structs.replace(gpu, verdict=Verdict(level="ok", check="gpu", reason="works"))
    assert say.device_text(msgspec.structs.replace(device, gpus=(good,))) == "GeForce GTX 750, 2 GB"
