"""A few screens as pictures. After a change that is meant: pytest tests/tui/test_snapshots.py --snapshot-update."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from textual.pilot import Pilot

from daisychain.tui.app import DaisyApp

AppOf = Callable[..., DaisyApp]


def test_the_cluster_with_a_request(app_of: AppOf, make: SimpleNamespace, snap_compare: Any) -> None:
    app = app_of(make.backend(make.world(requests=(make.request(),))))
    assert snap_compare(app, terminal_size=(80, 24), run_before=make.settle)


def test_a_run_in_a_large_terminal(app_of: AppOf, make: SimpleNamespace, snap_compare: Any) -> None:
    app = app_of(make.backend(make.world(run=make.run())), start="run")
    assert snap_compare(app, terminal_size=(120, 40), run_before=make.settle)


def test_a_paused_run_with_a_node_in_use(app_of: AppOf, make: SimpleNamespace, snap_compare: Any) -> None:
    run = make.run(paused=True, nodes=make.run().nodes[:2], lent=("old-laptop",), eta_s=None, samples_per_second=0.0)
    app = app_of(make.backend(make.world(run=run)), start="run")
    assert snap_compare(app, terminal_size=(80, 24), run_before=make.settle)


def test_a_result_in_a_small_light_terminal(app_of: AppOf, make: SimpleNamespace, snap_compare: Any) -> None:
    scores = {"accuracy": 0.972, "baseline": {"accuracy": 0.112}}
    run = make.run(1000, phase="finished", speedup_vs_fastest_node=1.61, scores=scores)
    app = app_of(make.backend(make.world(run=run)), theme="light", start="run")
    assert snap_compare(app, terminal_size=(80, 24), run_before=make.settle)


def test_the_launch_form(app_of: AppOf, make: SimpleNamespace, snap_compare: Any) -> None:
    async def open_form(pilot: Pilot[None]) -> None:
        await make.settle(pilot)
        await pilot.press("l", "right")
        await make.settle(pilot)

    app = app_of(make.backend(make.world()), theme="colour-safe")
    assert snap_compare(app, terminal_size=(80, 24), run_before=open_form)
