"""A run: how far, how fast, which node does what, and how it ended."""

from typing import ClassVar

import msgspec
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Footer, Log

from daisychain.facts import ENDED, RunSpec, RunState, Snapshot
from daisychain.link.messages import FollowRun, Launch, Launched, PauseRun, RunNews, StopRun
from daisychain.tui import presentation as say
from daisychain.tui.chart import Chart
from daisychain.tui.host import DaisyScreen
from daisychain.tui.screens.dialogs import Confirm
from daisychain.tui.text import Line, clean, milliseconds
from daisychain.tui.widgets import Lines

SLOW_S = 2.0
"""How often charts and log are drawn; they cost ten times what the numbers cost."""
LOG_LINES = 1000
VIEWS = ("loss", "steps", "log-box")
STARTING = ("preparing", "shipping", "starting")


class RunScreen(DaisyScreen):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "app.help", "help", key_display="?"),
        Binding("q", "app.quit", "quit"),
        Binding("s", "stop", "stop"),
        Binding("p", "pause", "pause"),
        Binding("p", "resume", "resume"),
        *DaisyScreen.TAKE_OR_GIVE,
        Binding("v", "view", "view"),
        Binding("c", "copy", "copy"),
        Binding("L", "anyway", "launch anyway"),
        Binding("b,escape", "app.pop_screen", "back", key_display="b"),
        Binding("T", "app.next_theme", "theme"),
    ]

    def __init__(self, run: str = "") -> None:
        super().__init__()
        self.run_id = run
        """The run to show; empty: whichever the snapshot has."""
        self.state: RunState | None = None
        self.view = 0
        self._shown_log: tuple[str, ...] = ()
        self._drawn: RunState | None = None
        self._ticks = 0
        self._asking = False

    def compose(self) -> ComposeResult:
        yield Lines(id="title")
        yield Lines(id="banner")
        with Vertical(id="progress-box"):
            yield Lines(id="progress")
        with VerticalScroll(id="ranks-box", classes="box", can_focus=False) as ranks:
            ranks.border_title = "Shares and times"
            yield Lines(id="ranks")
        with Vertical(id="ending-box", classes="box") as ending:
            ending.border_title = "Result"
            yield Lines(id="ending")
        with Horizontal(id="charts"):
            yield Chart("accent", id="loss", title="Loss")
            yield Chart("compute", milliseconds, id="steps", title="Step time, ms")
        with Vertical(id="log-box", classes="box") as log:
            log.border_title = "Events"
            yield Log(id="log", max_lines=LOG_LINES)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one("#title", Lines).show([(("DaisyChain   ", "accent"), ("waiting for the run …", "dim"))])
        self.query_one("#ending-box").display = False
        self.query_one("#ranks-box").display = False
        self.query_one(Log).can_focus = False
        self.set_interval(SLOW_S, self._slow_tick)
        super().on_mount()

    def on_resize(self) -> None:
        self.set_class(self.size.width < 100 or self.size.height < 32, "-small")
        self._show_view()
        super().on_resize()

    def show(self, snapshot: Snapshot) -> None:
        run = snapshot.run
        if run is not None and self.run_id in ("", run.id):
            self._show_run(run)
        elif self.run_id and not (self.state and self.state.phase in ENDED) and not self._asking:
            # the snapshot has gone on to another run, or to none; the agent still knows how this one ended
            self._asking = True
            self.run_worker(self._ask_news())

    async def _ask_news(self) -> None:
        answer = await self.host.ask(FollowRun(run=self.run_id))
        if isinstance(answer, RunNews):
            self._show_run(answer.state)
            self._asking = False

    def _show_run(self, run: RunState) -> None:
        before = self.state
        self.run_id, self.state = run.id, run
        cells = self.size.width - 4
        self.query_one("#title", Lines).show([(("DaisyChain   ", "accent"), *say.run_title(run))])
        self.query_one("#progress", Lines).show(progress(run, cells))
        # in a small terminal the error needs the room more
        hidden = run.phase == "failed" and self.has_class("-small")
        self.query_one("#ranks-box").display = bool(run.nodes or run.lent) and not hidden
        self.query_one("#ranks", Lines).show(say.rank_rows(run, cells - 3))
        self._show_ending(run)
        if before is None or before.phase != run.phase:
            self._draw_slow()
        if before is None or (before.phase, before.paused, before.lent) != (run.phase, run.paused, run.lent):
            self.refresh_bindings()

    def _show_ending(self, run: RunState) -> None:
        lines = say.ending(run)
        box = self.query_one("#ending-box")
        box.display = bool(lines)
        box.border_title = "Error" if run.phase == "failed" else "Result"
        box.set_class(run.phase == "failed", "bad")
        self.query_one("#ending", Lines).show(lines)

    def _slow_tick(self) -> None:
        self._ticks += 1
        # nobody looks: half as often
        if self.host.app_focus or self._ticks % 2 == 0:
            self._draw_slow()

    def _draw_slow(self) -> None:
        run = self.state
        if run is None or run is self._drawn:
            return
        self._drawn = run
        self.query_one("#loss", Chart).points = run.loss_history
        self.query_one("#steps", Chart).points = run.step_ms_history
        log = self.query_one(Log)
        afresh, lines = say.new_log_lines(self._shown_log, run.log)
        if afresh:
            log.clear()
        log.write_lines([clean(line, 400) for line in lines])
        self._shown_log = run.log

    def _show_view(self) -> None:
        """In a small terminal, one of the charts and the log at a time."""
        small = self.has_class("-small")
        for index, name in enumerate(VIEWS):
            self.query_one(f"#{name}").display = not small or index == self.view
        self.query_one("#charts").display = not small or self.view < 2
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        going = self.state is not None and self.state.phase not in ENDED
        if action == "stop":
            return going
        leads = self.host.snapshot is not None and self.host.snapshot.role == "head"
        if action in ("pause", "resume"):
            return leads and going and self.state is not None and self.state.paused == (action == "resume")
        if action in ("take", "give"):
            return not leads and going and self.own is not None and self.own.lent == (action == "give")
        if action == "copy":
            return bool(self.state and self.state.phase in ENDED)
        if action == "anyway":
            return self.state is not None and say.lost_beforehand(self.state)
        if action == "view":
            return self.has_class("-small")
        return True

    def action_view(self) -> None:
        self.view = (self.view + 1) % len(VIEWS)
        self._show_view()

    def action_copy(self) -> None:
        if self.state is not None:
            self.host.copy(say.copy_text(self.state), "the error and its log" if self.state.error else "the folder")

    def action_anyway(self) -> None:
        if self.state is not None:
            self.run_worker(self._launch(msgspec.structs.replace(self.state.spec, anyway=True)))

    async def _launch(self, spec: RunSpec) -> None:
        launched = await self.host.ask(Launch(spec=spec))
        if isinstance(launched, Launched):
            self.run_id = launched.run

    def action_pause(self) -> None:
        self.run_worker(self.host.ask(PauseRun(paused=True)))

    def action_resume(self) -> None:
        self.run_worker(self.host.ask(PauseRun(paused=False)))

    def action_stop(self) -> None:
        question: tuple[Line, ...] = (
            (("Stop this run on every node?", ""),),
            (("Completed steps stay in its folder; it can be resumed.", "dim"),),
        )

        def decided(yes: bool | None) -> None:
            if yes:
                self.run_worker(self.host.ask(StopRun()))

        self.app.push_screen(Confirm("Stop", question), decided)


def progress(run: RunState, cells: int) -> list[Line]:
    """The four lines on top: bar, counters, rates, a step's time; before the first step what is going on."""
    lines = [say.progress_line(run, cells)]
    if run.phase in STARTING and not run.step:
        return [*lines, ((clean(run.detail, 300) or "getting every node ready …", ""),)]
    lines += [say.counters_line(run), say.rates_line(run), *say.forecast_lines(run), say.split_line(run)]
    return [*lines, ((clean(run.detail, 300), "dim"),)] if run.detail and run.phase not in ENDED else lines
