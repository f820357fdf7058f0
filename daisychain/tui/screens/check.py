"""Checking the chain: what is well and what isn't, why, what to do, and what this program can do itself."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Footer

from daisychain.errors import DaisyError
from daisychain.facts import ENDED, Snapshot, Verdict
from daisychain.link.messages import Done, Examine, Examined, ListNics, Measure, Nics
from daisychain.tui import fixes
from daisychain.tui.checklist import CHROME, Checklist, Matrix, moved
from daisychain.tui.host import DaisyScreen
from daisychain.tui.presentation import error_lines, matrix, nothing_found, tally, trying
from daisychain.tui.presentation.evidence import evidence
from daisychain.tui.screens.dialogs import Reading
from daisychain.tui.screens.nic import choose_nic
from daisychain.tui.text import Line, clean
from daisychain.tui.widgets import Lines

TICK_S = 1.0


class Check(DaisyScreen):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "app.help", "help", key_display="?"),
        Binding("q", "app.quit", "quit"),
        Binding("enter", "evidence", "evidence"),
        Binding("x", "matrix", "matrix"),
        Binding("x", "list", "list"),
        Binding("f", "fix", "fix"),
        Binding("c", "copy", "copy"),
        Binding("r", "again", "again"),
        Binding("b,escape", "app.pop_screen", "back", key_display="b"),
        Binding("n", "nic", "NIC"),
        Binding("m", "measure", "measure"),
        Binding("T", "app.next_theme", "theme"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.found: Examined | None = None
        self.nics: Nics | None = None
        self.trouble: DaisyError | None = None
        """Why there are no findings."""
        self.waited_s: float | None = None
        """How long the check has been going on; None while there is none."""
        self.square = False
        self.at = (0, 0)
        """(from, to) of the selected way."""

    def compose(self) -> ComposeResult:
        yield Lines(id="title")
        yield Lines(id="banner")
        yield Lines(id="trying")
        yield Checklist(id="checklist")
        with Vertical(id="square"):
            with VerticalScroll(id="matrix-box", classes="box", can_focus=False) as ways:
                ways.border_title = "Who reaches whom"
                yield Matrix(id="matrix")
                yield Lines(id="legend")
            with VerticalScroll(id="way-box", classes="box", can_focus=False) as selected:
                selected.border_title = "Selected"
                yield Lines(id="way")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one("#legend", Lines).show([matrix.legend()])
        self.set_interval(TICK_S, self._tick)
        self.action_again()
        super().on_mount()

    # --- asking ----------------------------------------------------------------------------------

    def action_again(self) -> None:
        if self.waited_s is None:
            self.waited_s = 0.0
            self.run_worker(self._examine())

    async def _examine(self) -> None:
        self._draw()
        self.found = self.trouble = None
        try:
            nics, found = await self.host.request(ListNics()), await self.host.request(Examine())
        except DaisyError as error:
            self.trouble = error
        else:
            self.nics = nics if isinstance(nics, Nics) else None
            self.found = found if isinstance(found, Examined) else None
        finally:
            self.waited_s = None
        if self.found is not None:
            self.at = matrix.first_to_see(self.found)
        self.square = self.square and self._ways > 0
        self._draw(afresh=True)

    def _tick(self) -> None:
        if self.waited_s is not None:
            self.waited_s += TICK_S
            self._draw()

    # --- showing ---------------------------------------------------------------------------------

    def show(self, snapshot: Snapshot) -> None:
        self._draw()

    def _draw(self, afresh: bool = False) -> None:
        """afresh: other findings, or the other view: the keys go where they belong."""
        found = self.found if self.waited_s is None else None
        self._draw_title(found)
        waiting = self.query_one("#trying", Lines)
        waiting.display = found is None
        if self.waited_s is not None:
            waiting.show(trying(self.host.snapshot, self.waited_s))
        elif found is None:
            waiting.show(error_lines(self.trouble) if self.trouble else nothing_found())
        checklist = self.query_one(Checklist)
        checklist.display = found is not None and not self.square
        self.query_one("#square").display = found is not None and self.square
        if found is not None and self.square:
            self._draw_square(found, afresh)
        elif found is not None:
            checklist.show(found.verdicts, [node.name for node in found.nodes], afresh)
            if afresh:
                checklist.take_keys()
            self._explain()
        self.refresh_bindings()

    def _draw_title(self, found: Examined | None) -> None:
        line: Line = (("DaisyChain   ", "accent"), ("check the chain", "bold"))
        if found is not None:
            line = (*line, ("   ", ""), *tally(found.verdicts))
        self.query_one("#title", Lines).show([line])

    def _draw_square(self, found: Examined, afresh: bool) -> None:
        drawn = self.query_one(Matrix)
        drawn.show(matrix.matrix_lines(found, self.at, self.size.width - CHROME))
        if afresh:
            drawn.focus()
        self.query_one("#way", Lines).show(matrix.way_lines(found, self.at, fixes.words(self._fix())))

    def _explain(self) -> None:
        self.query_one(Checklist).explain(self.selected, fixes.words(self._fix()))

    def on_checklist_moved(self) -> None:
        self._explain()
        self.refresh_bindings()

    def on_matrix_moved(self, event: Matrix.Moved) -> None:
        if self.found is not None:
            self.at = moved(self.at, event.rows, event.columns, len(self.found.nodes))
            self._draw()

    # --- the selected one ------------------------------------------------------------------------

    @property
    def selected(self) -> Verdict | None:
        """The verdict of the selected line, or of the selected way."""
        if self.found is None or not self.found.nodes:
            return None
        if self.square:
            return matrix.judged(self.found, *self.at)
        at = self.query_one(Checklist).at
        return self.found.verdicts[at] if at is not None and at < len(self.found.verdicts) else None

    def _is_there(self, verdict: Verdict | None) -> bool:
        """Whether it is about a node that has answered."""
        return verdict is not None and self.found is not None and verdict.node in {n.name for n in self.found.nodes}

    @property
    def _ways(self) -> int:
        """How many nodes there are with a way between them."""
        return len(self.found.nodes) if self.found is not None and len(self.found.nodes) > 1 else 0

    def _fix(self) -> fixes.Fix:
        snapshot = self.host.snapshot
        if self.found is None or snapshot is None:
            return fixes.Nothing("There is nothing to fix yet")
        verdict = self.selected
        if self.square and verdict is None:
            return fixes.Nothing("Nothing to fix here: a run doesn't need more of this way")
        return fixes.fix_for(verdict, self.found.verdicts, self.found.nodes, snapshot.self_id, self.nics)

    # --- keys ------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        there = self.found is not None and self.waited_s is None
        if action == "again":
            return self.waited_s is None
        if action in ("evidence", "fix"):
            return there
        if action == "measure":
            return there and self.is_mounted and self._is_there(self.selected)
        if action == "copy":
            return there and self.is_mounted and bool(self.selected and self.selected.remedy)
        if action in ("matrix", "list"):
            return there and self._ways > 0 and self.square == (action == "list")
        return True

    def action_matrix(self) -> None:
        self.square = True
        self._draw(afresh=True)

    def action_list(self) -> None:
        self.square = False
        self._draw()
        self.query_one(Checklist).take_keys()

    def action_copy(self) -> None:
        if self.selected is not None:
            self.host.copy(clean(self.selected.remedy, 400), "the remedy")

    def action_evidence(self) -> None:
        snapshot = self.host.snapshot
        if self.found is None or snapshot is None:
            return
        verdict = self.selected
        if self.square:
            names = {self.found.nodes[place].name for place in self.at}
        else:
            # what is said of the whole chain was judged by all of its nodes
            names = {verdict.node} if verdict and verdict.node else {node.name for node in self.found.nodes}
        lines = evidence(verdict, names, self.found, self.nics, snapshot.self_id)
        self.app.push_screen(Reading("Evidence", lines))

    def action_fix(self) -> None:
        fix, snapshot = self._fix(), self.host.snapshot
        if isinstance(fix, fixes.Nothing):
            self.host.tell(fix.why)
        elif isinstance(fix, fixes.LeaveOut):
            if snapshot is not None and snapshot.run is not None and snapshot.run.phase not in ENDED:
                self.host.tell("A run is going on; the next one can be launched without that node once it has ended")
                return
            from daisychain.tui.screens.launch import LaunchScreen

            self.app.push_screen(LaunchScreen(nodes=", ".join(fix.nodes)))
        elif isinstance(fix, fixes.MeasureAgain):
            self.run_worker(self._measure(fix.node))
        else:
            self.action_nic()

    def action_measure(self) -> None:
        if self.selected is not None:
            self.run_worker(self._measure(self.selected.node))

    async def _measure(self, node: str) -> None:
        if isinstance(await self.host.ask(Measure(node=node)), Done):
            self.host.tell(f"{node} measures its speed again; the cluster screen shows it when it is done")

    def action_nic(self) -> None:
        self.host.run_worker(choose_nic(self.host))
