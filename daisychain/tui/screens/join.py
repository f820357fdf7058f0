"""The worker's view: heads to join, then the membership and this machine's part of the run."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Digits, Footer

from daisychain.facts import FoundHead, Snapshot
from daisychain.link.messages import BeWorker, ConfirmHead
from daisychain.tui import presentation as say
from daisychain.tui.host import DaisyScreen
from daisychain.tui.screens.dialogs import AskAddress
from daisychain.tui.text import Line, clean
from daisychain.tui.widgets import Lines, Rows

CHROME = 7
"""Cells of a row's width that margin, border, padding and scroll bar take."""


class Join(DaisyScreen):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "app.help", "help", key_display="?"),
        Binding("q", "app.quit", "quit"),
        Binding("j", "join", "join"),
        Binding("e", "address", "type an address"),
        Binding("r", "run", "run"),
        *DaisyScreen.TAKE_OR_GIVE,
        Binding("T", "app.next_theme", "theme"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.waited = False

    def compose(self) -> ComposeResult:
        yield Lines(id="title")
        yield Lines(id="banner")
        with Vertical(id="heads-box", classes="box") as heads:
            heads.border_title = "Heads"
            yield Rows(id="heads")
            yield Lines(id="no-heads")
        with Vertical(id="question-box", classes="box alert"), Horizontal(id="compare"):
            yield Digits("", id="digits")
            yield Lines(id="question")
        with Vertical(id="member-box", classes="box") as member:
            member.border_title = "This machine"
            yield Lines(id="member")
        with Vertical(id="own-box", classes="box") as run:
            run.border_title = "Run"
            yield Lines(id="own-run")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        for hidden in ("#question-box", "#member-box", "#own-box"):
            self.query_one(hidden).display = False
        self.query_one("#title", Lines).show([(("DaisyChain   ", "accent"), ("join a chain", "bold"))])
        self.query_one("#no-heads", Lines).show([(("connecting to this machine's agent …", "dim"),)])
        self.set_timer(self.host.no_heads_after_s, self._explain)
        super().on_mount()

    def _explain(self) -> None:
        self.waited = True
        self.refresh_snapshot()

    def show(self, snapshot: Snapshot) -> None:
        joined = bool(snapshot.joined)
        self._show_title(snapshot)
        self.query_one("#heads-box").display = not joined
        self.query_one("#member-box").display = joined
        if joined:
            self.query_one("#member", Lines).show(say.membership(snapshot))
        self._show_heads(snapshot)
        self._show_run(snapshot)
        self.refresh_bindings()

    def _show_title(self, snapshot: Snapshot) -> None:
        own = next((node for node in snapshot.nodes if node.id == snapshot.self_id), None)
        what = "worker" if snapshot.joined else "join a chain"
        line: Line = (("DaisyChain   ", "accent"), (what, "bold"))
        if own is not None:
            line = (*line, ("   this machine: ", "dim"), (clean(own.name, 40), ""), ("  ", ""), *say.node_state(own))
        self.query_one("#title", Lines).show([line])

    def _show_heads(self, snapshot: Snapshot) -> None:
        rows = self.query_one("#heads", Rows)
        rows.show([(head.id, say.head_row(head, self.size.width - CHROME)) for head in snapshot.heads])
        rows.display = bool(snapshot.heads)
        if rows.rows and self.focused is None:
            rows.focus()
        empty = self.query_one("#no-heads", Lines)
        empty.display = not snapshot.heads
        empty.show(say.no_heads(snapshot.discovery, self.waited))
        self._show_question(snapshot)

    def _show_question(self, snapshot: Snapshot) -> None:
        chosen = self._selected(snapshot)
        question = say.head_question(chosen, len(snapshot.heads))
        self.query_one("#question-box").display = bool(question) and not snapshot.joined
        self.query_one("#question", Lines).show(question)
        digits = self.query_one("#digits", Digits)
        wanted = say.digits_text(chosen.digits) if chosen and chosen.digits else ""
        digits.display = bool(wanted)
        if digits.value != wanted:
            digits.update(wanted)

    def _show_run(self, snapshot: Snapshot) -> None:
        box = self.query_one("#own-box")
        box.display = bool(snapshot.joined and snapshot.run)
        if snapshot.run is not None:
            self.query_one("#own-run", Lines).show(say.own_run(snapshot, self.size.width - CHROME))

    def on_rows_moved(self) -> None:
        if self.host.snapshot is not None:
            self._show_question(self.host.snapshot)
            self.refresh_bindings()

    def _selected(self, snapshot: Snapshot | None) -> FoundHead | None:
        selected = self.query_one("#heads", Rows).selected
        return next((head for head in snapshot.heads if head.id == selected), None) if snapshot else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        snapshot = self.host.snapshot
        if action == "join":
            head = self._selected(snapshot) if self.is_mounted else None
            return bool(snapshot and not snapshot.joined and head and head.state == "ready")
        if action == "address":
            return snapshot is not None and not snapshot.joined
        if action == "run":
            return bool(snapshot and snapshot.run)
        if action in ("take", "give"):
            return bool(snapshot and snapshot.joined and self.own and self.own.lent == (action == "give"))
        return True

    def action_join(self) -> None:
        head = self._selected(self.host.snapshot)
        if head is not None:
            self.run_worker(self.host.ask(ConfirmHead(id=head.id)))

    def action_address(self) -> None:
        def typed(address: tuple[str, int] | None) -> None:
            if address is not None:
                self.run_worker(self.host.ask(BeWorker(host=address[0], port=address[1])))

        self.app.push_screen(AskAddress(), typed)

    def action_run(self) -> None:
        from daisychain.tui.screens.run import RunScreen

        self.app.push_screen(RunScreen())
