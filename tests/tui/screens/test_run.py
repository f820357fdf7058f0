from collections.abc import Callable
from types import SimpleNamespace

import msgspec
import pytest
from textual.widgets import Log

from daisychain.facts import Foretold, RunSpec, RunState, Snapshot
from daisychain.link.messages import FollowRun, Launch, Lend, PauseRun, RunNews, StopRun
from daisychain.tui.app import DaisyApp
from daisychain.tui.chart import Chart
from daisychain.tui.screens.cluster import Cluster
from daisychain.tui.screens.dialogs import Confirm
from daisychain.tui.screens.run import LOG_LINES, RunScreen
from daisychain.tui.text import milliseconds, number
from daisychain.tui.widgets import Lines

AppOf = Callable[..., DaisyApp]


def shown(app: DaisyApp, widget: str) -> str:
    return "\n".join("".join(text for text, _ in line) for line in app.screen.query_one(widget, Lines).lines)


def offered(app: DaisyApp) -> set[str]:
    return {active.binding.description for active in app.screen.active_bindings.values() if active.binding.show}


def story(make: SimpleNamespace) -> list[RunState]:
    """A run as it was recorded, from launch to end."""
    early = {"nodes": (), "samples_per_second": None, "step_ms": None, "loss": None, "eta_s": None, "log": ()}
    return [
        make.run(0, phase="preparing", **early),
        make.run(0, phase="shipping", detail="old-laptop: 12 of 27 MB", **early),
        make.run(0, phase="starting", detail="loading torch", **early),
        make.run(20),
        make.run(412),
        make.run(1000, phase="finishing"),
        make.run(
            1000, phase="finished", speedup_vs_fastest_node=1.61,
            scores={"accuracy": 0.97, "baseline": {"accuracy": 0.1}}, log=(*make.run().log, "finished"),
        ),
    ]  # fmt: skip


async def test_a_run_from_launch_to_result(app_of: AppOf, make: SimpleNamespace) -> None:
    preparing, shipping, starting, first, middle, finishing, finished = story(make)
    backend = make.backend(make.world(run=preparing))
    app = app_of(backend, start="run")

    async with app.run_test(size=(120, 40)) as pilot:

        async def at(run: RunState) -> None:
            backend.send(make.world(run=run))
            await make.settle(pilot)

        await make.settle(pilot)
        assert "◌ preparing" in shown(app, "#title")
        assert not app.screen.query_one("#ranks-box").display
        await at(shipping)
        assert "old-laptop: 12 of 27 MB" in shown(app, "#progress")
        await at(starting)
        assert "loading torch" in shown(app, "#progress")
        await at(first)
        assert "step 20 of 1000" in shown(app, "#progress")
        assert "938" in shown(app, "#ranks")
        assert app.screen.query_one("#loss", Chart).points == first.loss_history
        await at(middle)
        assert "41%" in shown(app, "#progress")
        assert "16\u202f340 samples/s" in shown(app, "#progress")
        assert "compute 69" in shown(app, "#progress")
        assert offered(app) == {"help", "quit", "stop", "pause", "back", "theme"}
        assert not app.screen.query_one("#ending-box").display
        await at(finishing)
        await at(finished)
        assert "1.61 times the fastest node alone" in shown(app, "#ending")
        assert "baseline 0.1" in shown(app, "#ending")
        assert app.screen.query_one("#steps", Chart).points == finished.step_ms_history
        assert list(app.screen.query_one(Log).lines)[: len(finished.log)] == list(finished.log)
        assert offered(app) == {"help", "quit", "copy", "back", "theme"}


async def test_charts_and_log_are_drawn_less_often_than_numbers(app_of: AppOf, make: SimpleNamespace) -> None:
    backend = make.backend(make.world(run=make.run(20)))
    app = app_of(backend, start="run")
    async with app.run_test(size=(120, 40)) as pilot:
        await make.settle(pilot)
        backend.send(make.world(run=make.run(30, log=("new",))))
        await make.settle(pilot)
        assert "step 30" in shown(app, "#progress")
        chart = app.screen.query_one("#loss", Chart)
        assert chart.points == make.run(20).loss_history
        app.screen._slow_tick()  # type: ignore[attr-defined]
        assert chart.points == make.run(30).loss_history


async def test_a_failed_run_shows_and_copies_its_error_and_log(app_of: AppOf, make: SimpleNamespace) -> None:
    run = make.run(phase="failed", error="old-laptop: exit -9, out of memory", log_path="/r/rank-2.log")
    app = app_of(make.backend(make.world(run=run)), start="run")
    async with app.run_test(size=(80, 24)) as pilot:
        await make.settle(pilot)
        assert "✗ old-laptop: exit -9, out of memory" in shown(app, "#ending")
        assert "/r/rank-2.log" in shown(app, "#ending")
        await pilot.press("c")
        assert app.clipboard == "old-laptop: exit -9, out of memory\n/r/rank-2.log"


async def test_stop_asks_first(app_of: AppOf, make: SimpleNamespace) -> None:
    backend = make.backend(make.world(run=make.run()))
    app = app_of(backend, start="run")
    async with app.run_test() as pilot:
        await make.settle(pilot)
        await pilot.press("s")
        assert isinstance(app.screen, Confirm)
        await pilot.press("enter")
        assert backend.asked == []
        await pilot.press("s", "y")
        await pilot.pause()
        assert backend.asked == [StopRun()]
        await pilot.press("escape")
        assert isinstance(app.screen, Cluster)


async def test_in_a_small_terminal_v_turns_to_the_next_view(app_of: AppOf, make: SimpleNamespace) -> None:
    app = app_of(make.backend(make.world(run=make.run())), start="run")
    async with app.run_test(size=(80, 24)) as pilot:
        await make.settle(pilot)

        def visible() -> list[str]:
            return [name for name in ("loss", "steps", "log-box") if app.screen.query_one(f"#{name}").region.height > 0]

        seen = [visible()]
        for _ in range(3):
            await pilot.press("v")
            await make.settle(pilot)
            seen.append(visible())
        assert seen == [["loss"], ["steps"], ["log-box"], ["loss"]]
        await pilot.resize_terminal(120, 40)
        await make.settle(pilot)
        assert visible() == ["loss", "steps", "log-box"]
        loss, steps = app.screen.query_one("#loss").region, app.screen.query_one("#steps").region
        assert loss.y == steps.y
        assert "view" not in offered(app)
        boxes = [app.screen.query_one(name).region for name in ("#ranks-box", "#charts", "#log-box")]
        assert len({(box.x, box.right) for box in boxes}) == 1
        assert steps.right == boxes[0].right
        await pilot.resize_terminal(80, 24)
        await make.settle(pilot)
        assert app.screen.query_one("#ranks").region.height == 4


async def test_the_end_of_a_run_that_left_the_snapshot_is_asked_for(app_of: AppOf, make: SimpleNamespace) -> None:
    run = make.run()
    backend = make.backend(make.world(run=run))
    backend.answers[FollowRun] = RunNews(state=msgspec.structs.replace(run, phase="stopped"))
    app = app_of(backend, start="run")
    async with app.run_test() as pilot:
        await make.settle(pilot)
        backend.send(make.world(run=None))
        backend.send(make.world(run=make.run(1, id="another")))
        await make.settle(pilot)
        assert "■ stopped" in shown(app, "#title")
        backend.send(make.world(run=make.run(2, id="another")))
        await make.settle(pilot)
        assert backend.asked == [FollowRun(run=run.id)]


async def test_the_log_is_bounded(app_of: AppOf, make: SimpleNamespace) -> None:
    app = app_of(make.backend(make.world(run=make.run())), start="run")
    async with app.run_test(size=(120, 40)) as pilot:
        await make.settle(pilot)
        screen = app.screen
        assert isinstance(screen, RunScreen)
        for block in range(12):
            screen._show_run(make.run(log=tuple(f"line {block}.{number}" for number in range(200))))
            screen._draw_slow()
        await pilot.pause()
        assert screen.query_one(Log).line_count <= LOG_LINES


@pytest.mark.parametrize("phase", ["preparing", "running", "finished", "failed", "stopped"])
async def test_a_run_of_which_nothing_is_known_yet_is_no_trouble(
    app_of: AppOf, make: SimpleNamespace, phase: str
) -> None:
    bare = RunState(id="r", name="", phase=phase, folder="", spec=make.run().spec)  # type: ignore[arg-type]
    app = app_of(make.backend(make.world(run=bare)), start="run")
    async with app.run_test(size=(80, 24)) as pilot:
        await make.settle(pilot)
        assert phase in shown(app, "#title")
        assert "None" not in shown(app, "#progress") + shown(app, "#ending")


async def test_p_pauses_and_resumes_and_the_state_has_a_sign_and_a_word(app_of: AppOf, make: SimpleNamespace) -> None:
    backend = make.backend(make.world(run=make.run()))
    app = app_of(backend, start="run")
    async with app.run_test(size=(120, 40)) as pilot:
        await make.settle(pilot)
        await pilot.press("p")
        await pilot.pause()
        assert backend.asked == [PauseRun(paused=True)]
        backend.send(make.world(run=make.run(paused=True)))
        await make.settle(pilot)
        assert "‖ paused" in shown(app, "#title")
        assert "▶" not in shown(app, "#title")
        assert offered(app) == {"help", "quit", "stop", "resume", "back", "theme"}
        await pilot.press("p")
        await pilot.pause()
        assert backend.asked[1:] == [PauseRun(paused=False)]
        backend.send(make.world(run=make.run(paused=False, phase="stopped")))
        await make.settle(pilot)
        await pilot.press("p")
        assert len(backend.asked) == 2


async def test_a_node_that_its_owner_uses_is_in_the_table_without_numbers(app_of: AppOf, make: SimpleNamespace) -> None:
    run = make.run()
    used = make.run(nodes=run.nodes[:2], lent=("old-laptop",))
    backend = make.backend(make.world(run=used))
    app = app_of(backend, start="run")
    async with app.run_test(size=(120, 40)) as pilot:
        await make.settle(pilot)
        rows = shown(app, "#ranks").splitlines()
        assert [row.split()[0] for row in rows] == ["node", "anna", "mini-pc", "old-laptop"]
        assert rows[-1].split(maxsplit=1)[1] == "‖ in use by its owner"
        backend.send(make.world(run=make.run(lent=tuple(part.node for part in run.nodes))))
        await make.settle(pilot)
        assert shown(app, "#ranks").count("‖ in use") == 3


async def test_on_a_worker_p_takes_its_machine_back_and_gives_it_back(app_of: AppOf, make: SimpleNamespace) -> None:
    def world(lent: bool) -> Snapshot:
        nodes = tuple(msgspec.structs.replace(n, lent=lent and n.name == "old-laptop") for n in make.three())
        run = make.run(lent=("old-laptop",) if lent else ())
        made: Snapshot = make.world(role="worker", self_id="id-old-laptop", nodes=nodes, joined="anna", run=run)
        return made

    backend = make.backend(world(lent=False))
    app = app_of(backend, start="run")
    async with app.run_test(size=(120, 40)) as pilot:
        await make.settle(pilot)
        assert "take back" in offered(app)
        assert not offered(app) & {"pause", "resume"}
        await pilot.press("p")
        await pilot.pause()
        backend.send(world(lent=True))
        await make.settle(pilot)
        assert "give back" in offered(app)
        await pilot.press("p")
        await pilot.pause()
        assert backend.asked == [Lend(lent=True), Lend(lent=False)]


async def test_a_run_refused_for_its_forecast_is_launched_anyway_with_a_key(
    app_of: AppOf, make: SimpleNamespace
) -> None:
    told = Foretold(
        text="exact sync is slower than anna alone", nodes=("anna", "mini-pc"), step_ms=412.0, sync_ms=300.0,
        samples_per_second=3728.0, speedup=0.41,
    )  # fmt: skip
    spec = RunSpec(job="script", path="/x/train.py")
    refused = make.run(0, phase="failed", exit=4, error=told.text, foretold=told, spec=spec, nodes=())
    backend = make.backend(make.world(run=refused))
    app = app_of(backend, start="run")
    async with app.run_test(size=(80, 24)) as pilot:
        await make.settle(pilot)
        assert "launch anyway" in offered(app)
        assert "slower than anna alone" in shown(app, "#ending")
        await pilot.press("L")
        await make.settle(pilot)
        assert Launch(spec=msgspec.structs.replace(spec, anyway=True)) in backend.asked
        backend.send(make.world(run=make.run(0, phase="failed", exit=1, foretold=told, nodes=())))
        await make.settle(pilot)
        assert "launch anyway" not in offered(app)


async def test_the_forecast_stands_below_what_is_measured(app_of: AppOf, make: SimpleNamespace) -> None:
    told = Foretold(
        text="leave old out", nodes=("anna",), step_ms=90.0, sync_ms=3.0, samples_per_second=17000.0, speedup=1.3
    )
    app = app_of(make.backend(make.world(run=make.run(foretold=told, left_out=("old",)))), start="run")
    async with app.run_test(size=(120, 40)) as pilot:
        await make.settle(pilot)
        said = shown(app, "#progress")
        rate, step = number(17000.0), milliseconds(90.0)
        assert f"forecast {rate} samples/s   step {step} ms   1.30 times the fastest node alone" in said
        assert "left out old, it is faster so" in said
