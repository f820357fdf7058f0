"""A few screens as pictures. After a change that is meant: pytest tests/tui/test_snapshots.py --snapshot-update."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from textual.pilot import Pilot

from daisychain.link.messages import Examine, ListNics
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


def test_a_check_with_a_firewall(app_of: AppOf, make: SimpleNamespace, snap_compare: Any) -> None:
    async def check(pilot: Pilot[None]) -> None:
        await make.settle(pilot)
        await pilot.press("d")
        await make.settle(pilot)

    busy = make.verdict("mini-pc", "load", "63% of mini-pc's processor is in use by other programs", "End them there")
    backend = make.backend(make.world())
    backend.answers[ListNics] = make.nics()
    backend.answers[Examine] = make.examined(None, busy, blocked=((2, 0),))
    assert snap_compare(app_of(backend), terminal_size=(80, 24), run_before=check)


def test_who_reaches_whom_among_eight(app_of: AppOf, make: SimpleNamespace, snap_compare: Any) -> None:
    async def square(pilot: Pilot[None]) -> None:
        await make.settle(pilot)
        await pilot.press("d", "x")
        await make.settle(pilot)

    names = ("anna", "mini-pc", "a-very-long-host-name-of-a-machine", "attic", "cellar", "kitchen", "garage", "x")
    nodes = tuple(make.node(name, address=f"192.168.1.{at + 20}") for at, name in enumerate(names))
    backend = make.backend(make.world(nodes=nodes))
    backend.answers[ListNics] = make.nics()
    backend.answers[Examine] = make.examined(nodes, blocked=((2, 0), (4, 3)))
    assert snap_compare(app_of(backend, theme="light"), terminal_size=(120, 40), run_before=square)
