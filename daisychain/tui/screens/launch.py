"""The launch form: what a run needs, and the command that does the same."""

import asyncio
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Footer, Input, Label

from daisychain.errors import DaisyError, PreflightError
from daisychain.facts import Node, RunSpec, Snapshot, Verdict
from daisychain.link.messages import Launch, Launched, Measure
from daisychain.tui import fixes
from daisychain.tui import presentation as say
from daisychain.tui.checklist import Checklist
from daisychain.tui.form import FIELDS, JOBS, Job, LaunchForm, equivalent_command, path_problem, spec_of
from daisychain.tui.host import DaisyScreen
from daisychain.tui.screens.nic import choose_nic
from daisychain.tui.text import ColourRole, Line, clean
from daisychain.tui.widgets import Lines, content

HINTS = {
    "path": "train.py, or data.csv",
    "target": "the column to predict",
    "data": "files or folders that the script reads; empty: none",
    "args": "for the script",
    "nodes": "every ready node; auto: the fastest set",
    "batch": "global batch; empty: the job's own",
    "epochs": "empty: the job's own",
    "seed": "0",
}
JOB_HINTS: dict[Job, str] = {
    "demo": "learns to write like Python's own help pages; needs no file",
    "script": "a training script that uses daisychain.init()",
    "tabular": "a CSV file: learns to predict one column from the others",
}


class Choice(Widget, can_focus=True):
    """One of a few words, chosen with the left and right arrows."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", show=False),
        Binding("right,space", "move(1)", show=False),
    ]
    value: reactive[Job] = reactive[Job]("demo")

    class Changed(Message):
        """Another word is chosen."""

    def render(self) -> Content:
        line: list[tuple[str, ColourRole]] = []
        for job in JOBS:
            chosen = job == self.value
            line += [(f"‹ {job} ›" if chosen else f"  {job}  ", "accent" if chosen else "dim"), (" ", "")]  # noqa: RUF001
        return content(tuple(line))

    def action_move(self, steps: int) -> None:
        self.value = JOBS[(JOBS.index(self.value) + steps) % len(JOBS)]
        self.post_message(self.Changed())


class Field(Input):
    """An input that leaves enter to the form."""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "submit"


class LaunchScreen(DaisyScreen):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1", "app.help", "help", key_display="F1"),
        Binding("ctrl+q", "app.quit", "quit", key_display="^q", priority=True),
        Binding("enter", "submit", "launch", key_display="enter"),
        Binding("f", "fix", "fix"),
        Binding("c", "copy", "copy"),
        Binding("escape", "app.pop_screen", "back", key_display="esc"),
        Binding("down", "into_list", show=False),
    ]

    def __init__(self, nodes: str = "") -> None:
        """nodes: what the field of that name begins with."""
        super().__init__()
        self.busy = False
        self.first_nodes = nodes
        self.refused: tuple[Verdict, ...] = ()
        """What was said against the form as it stands, besides what is fine."""
        try:
            self.folder = Path.cwd()
        except OSError:
            # the folder that daisychain was started in has been removed
            self.folder = Path.home()

    def compose(self) -> ComposeResult:
        yield Lines(id="title")
        yield Lines(id="banner")
        with Vertical(id="form", classes="box") as box:
            box.border_title = "Launch"
            box.border_subtitle = "tab: next field"
            with Horizontal(classes="field"):
                yield Label("job", markup=False)
                yield Choice(id="job")
            yield Lines(id="job-hint")
            for name, hint in HINTS.items():
                with Horizontal(classes="field", id=f"field-{name}"):
                    yield Label(name, markup=False)
                    yield Field(
                        placeholder=hint,
                        id=name,
                        compact=True,
                        select_on_focus=False,
                        value={"seed": "0", "nodes": self.first_nodes}.get(name, ""),
                    )
        with Vertical(id="command-box", classes="box") as command:
            command.border_title = "The same as"
            command.border_subtitle = "gradients between nodes travel unencrypted"
            yield Lines(id="command")
        yield Lines(id="answer")
        yield Checklist(id="refused")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one("#title", Lines).show([(("DaisyChain   ", "accent"), ("launch a run", "bold"))])
        self.query_one(Choice).focus()
        self.form_changed()
        super().on_mount()

    def show(self, snapshot: Snapshot) -> None:
        ready = [clean(node.name) for node in snapshot.nodes if node.state != "lost"]
        placeholder = f"every ready node: {', '.join(ready)}" if ready else HINTS["nodes"]
        field = self.query_one("#nodes", Input)
        if field.placeholder != placeholder:
            field.placeholder = placeholder
        self._show_refused()

    def form(self) -> LaunchForm:
        """The form as typed."""
        typed = {name: self.query_one(f"#{name}", Input).value for name in HINTS}
        return LaunchForm(job=self.query_one(Choice).value, **typed)

    @on(Input.Changed)
    @on(Choice.Changed)
    def form_changed(self) -> None:
        form = self.form()
        for name in HINTS:
            self.query_one(f"#field-{name}").display = name in FIELDS[form.job]
        self.query_one("#job-hint", Lines).show(
            [(("          ", ""), ("← →", "accent"), (f"  {JOB_HINTS[form.job]}", "dim"))]
        )
        self._answer([])
        try:
            line: Line = ((clean(equivalent_command(spec_of(form, self.folder, self.host.snapshot)), 2000), "accent"),)
        except DaisyError as error:
            line = ((clean(f"{error.what} — {error.remedy}", 400), "dim"),)
        self.query_one("#command", Lines).show([line])

    def action_submit(self) -> None:
        if self.busy:
            return
        try:
            spec = spec_of(self.form(), self.folder, self.host.snapshot)
        except DaisyError as error:
            self._answer(say.error_lines(error))
            return
        self.busy = True
        self._answer([(("◌ checking every node …", "accent"),)])
        self.run_worker(self._launch(spec))

    async def _launch(self, spec: RunSpec) -> None:
        try:
            # the disk may be slow or far away, and the keys must not wait for it
            problem = await asyncio.to_thread(path_problem, spec)
            if problem is not None:
                raise problem
            launched = await self.host.request(Launch(spec=spec))
        except PreflightError as error:
            self._refuse(error)
        except DaisyError as error:
            self._answer(say.error_lines(error))
        else:
            from daisychain.tui.screens.run import RunScreen

            if isinstance(launched, Launched) and self.is_current:
                # not awaited: this worker belongs to the screen that goes
                self.app.switch_screen(RunScreen(launched.run))
        finally:
            self.busy = False

    def _answer(self, lines: list[Line]) -> None:
        self.refused = ()
        self.query_one("#answer", Lines).show(lines)
        self._show_refused()

    # --- a launch that was refused ---------------------------------------------------------------

    def _refuse(self, error: PreflightError) -> None:
        self._answer([])
        self.refused = tuple(verdict for verdict in error.verdicts if verdict.level != "ok")
        self._show_refused(afresh=True)

    def _show_refused(self, afresh: bool = False) -> None:
        self.set_class(bool(self.refused), "-refused")
        checklist = self.query_one(Checklist)
        checklist.display = bool(self.refused)
        self.query_one("#answer").display = not self.refused
        if self.refused:
            checklist.show(self.refused, [node.name for node in self._asked()], afresh)
            self.on_checklist_moved()
        self.refresh_bindings()

    def on_checklist_moved(self) -> None:
        self.query_one(Checklist).explain(self._selected, fixes.words(self._fix()))

    def on_descendant_focus(self) -> None:
        # keys of the list are offered while it has them
        self.refresh_bindings()

    @property
    def _selected(self) -> Verdict | None:
        at = self.query_one(Checklist).at
        return self.refused[at] if at is not None and at < len(self.refused) else None

    def _asked(self) -> list[Node]:
        """The nodes that the form asks for."""
        names = [name.strip() for name in self.query_one("#nodes", Input).value.split(",") if name.strip()]
        nodes = self.host.snapshot.nodes if self.host.snapshot else ()
        return [node for node in nodes if node.state != "lost" and (not names or node.name in names)]

    def _fix(self) -> fixes.Fix:
        own = self.host.snapshot.self_id if self.host.snapshot else ""
        return fixes.fix_for(self._selected, self.refused, self._asked(), own)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("fix", "copy"):
            return self.is_mounted and bool(self.refused) and self.query_one(Checklist).has_keys
        return not (action == "into_list" and not self.refused)

    def action_into_list(self) -> None:
        self.query_one(Checklist).take_keys()

    def action_copy(self) -> None:
        if self._selected is not None:
            self.host.copy(clean(self._selected.remedy, 400), "the remedy")

    def action_fix(self) -> None:
        fix = self._fix()
        if isinstance(fix, fixes.Nothing):
            self.host.tell(fix.why)
        elif isinstance(fix, fixes.LeaveOut):
            field = self.query_one("#nodes", Input)
            field.value = ", ".join(fix.nodes)
            field.focus()
        elif isinstance(fix, fixes.MeasureAgain):
            self.host.run_worker(self.host.ask(Measure(node=fix.node)))
        else:
            self.host.run_worker(choose_nic(self.host))
