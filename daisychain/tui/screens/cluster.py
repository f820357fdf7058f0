"""The head's view: who is in the chain, who wants to be, what to do next."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Digits, Footer

from daisychain.facts import ENDED, Node, Snapshot
from daisychain.link.messages import AcceptWorker, DeclineWorker, Forget
from daisychain.tui import presentation as say
from daisychain.tui.host import DaisyScreen
from daisychain.tui.screens.dialogs import Confirm, Invite
from daisychain.tui.text import Line, clean
from daisychain.tui.widgets import Lines, Rows

CHROME = 7
"""Cells of a row's width that margin, border, padding and scroll bar take."""


class Cluster(DaisyScreen):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "app.help", "help", key_display="?"),
        Binding("q", "app.quit", "quit"),
        Binding("a", "accept", "accept"),
        Binding("x", "decline", "decline"),
        Binding("l", "launch", "launch"),
        Binding("d", "check", "check"),
        Binding("r", "run", "run"),
        Binding("i", "invite", "invite"),
        Binding("f", "forget", "forget"),
        *DaisyScreen.TAKE_OR_GIVE,
        Binding("T", "app.next_theme", "theme"),
    ]

    def compose(self) -> ComposeResult:
        yield Lines(id="title")
        yield Lines(id="banner")
        with Vertical(id="nodes-box", classes="box") as nodes:
            nodes.border_title = "Nodes"
            yield Lines(id="node-header")
            yield Rows(id="nodes", preselect=True)
            yield Lines(id="empty")
        with Vertical(id="requests-box", classes="box alert") as requests:
            requests.border_title = "Wants to join"
            yield Rows(id="requests")
            with Horizontal(id="compare"):
                yield Digits("", id="digits")
                yield Lines(id="compare-hint")
        with Vertical(id="detail-box", classes="box") as detail:
            detail.border_title = "Selected"
            yield Lines(id="detail")
        yield Lines(id="advice")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        for hidden in ("#requests-box", "#detail-box", "#empty", "#advice", "#nodes-box"):
            self.query_one(hidden).display = False
        self.query_one("#title", Lines).show(
            [(("DaisyChain   ", "accent"), ("connecting to this machine's agent …", "dim"))]
        )
        super().on_mount()

    def show(self, snapshot: Snapshot) -> None:
        self._show_title(snapshot)
        self._show_nodes(snapshot)
        self._show_requests(snapshot)
        advice = say.advice_line(snapshot)
        self.query_one("#advice").display = bool(advice)
        self.query_one("#advice", Lines).show([advice])
        alone = len(snapshot.nodes) < 2 and not snapshot.requests
        self.query_one("#empty").display = alone
        self.query_one("#empty", Lines).show(say.ALONE)
        self.refresh_bindings()

    def _show_title(self, snapshot: Snapshot) -> None:
        line: Line = (("DaisyChain   ", "accent"), *say.chain_title(snapshot))
        if snapshot.run is not None:
            line = (
                *line,
                ("   run ", "dim"),
                (clean(snapshot.run.name, 30), ""),
                ("  ", ""),
                *say.phase_text(snapshot.run),
            )
        self.query_one("#title", Lines).show([line])

    def _show_nodes(self, snapshot: Snapshot) -> None:
        rows = self.query_one("#nodes", Rows)
        cells = self.size.width - CHROME
        self.query_one("#nodes-box").display = bool(snapshot.nodes)
        self.query_one("#node-header", Lines).show([say.node_header(cells)])
        rows.show([(node.id, say.node_row(node, snapshot, cells)) for node in snapshot.nodes])
        if self.focused is None and rows.rows:
            rows.focus()
        self._show_detail(snapshot)

    def _show_detail(self, snapshot: Snapshot) -> None:
        node = self._selected_node(snapshot)
        box = self.query_one("#detail-box")
        # a request to answer needs the room more
        box.display = node is not None and not (snapshot.requests and self.size.height < 30)
        if node is not None:
            box.border_title = say.border_name(node.name)
            self.query_one("#detail", Lines).show(say.node_detail(node))

    def _show_requests(self, snapshot: Snapshot) -> None:
        rows = self.query_one("#requests", Rows)
        had = bool(rows.rows)
        rows.show([(each.id, say.request_row(each, self.size.width - CHROME)) for each in snapshot.requests])
        self.query_one("#requests-box").display = bool(snapshot.requests)
        if snapshot.requests and not had:
            rows.focus()
        elif had and not snapshot.requests:
            self.query_one("#nodes", Rows).focus()
        chosen = next((each for each in snapshot.requests if each.id == rows.selected), None)
        digits = self.query_one("#digits", Digits)
        wanted = say.digits_text(chosen.digits) if chosen and chosen.digits else ""
        if digits.value != wanted:
            digits.update(wanted)
        digits.display = bool(wanted)
        self.query_one("#compare-hint", Lines).show(say.request_question(chosen, len(snapshot.requests)))

    def on_rows_moved(self) -> None:
        if self.host.snapshot is not None:
            self._show_detail(self.host.snapshot)
            self._show_requests(self.host.snapshot)
            self.refresh_bindings()

    def _selected_node(self, snapshot: Snapshot | None) -> Node | None:
        selected = self.query_one("#nodes", Rows).selected
        return next((node for node in snapshot.nodes if node.id == selected), None) if snapshot else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only what can be done now is offered."""
        snapshot = self.host.snapshot
        if action in ("accept", "decline"):
            return bool(snapshot and snapshot.requests)
        if action == "run":
            return bool(snapshot and snapshot.run)
        if action == "launch":
            return snapshot is not None and (snapshot.run is None or snapshot.run.phase in ENDED)
        if action in ("invite", "check"):
            return snapshot is not None
        if action in ("take", "give"):
            # with a run to take it out of; or to undo that
            going = bool(snapshot and snapshot.run and snapshot.run.phase not in ENDED and len(snapshot.nodes) > 1)
            own = self.own if self.is_mounted and self._selected_node(snapshot) == self.own else None
            return own is not None and (own.lent if action == "give" else going and not own.lent)
        if action == "forget":
            node = self._selected_node(snapshot) if self.is_mounted else None
            return bool(snapshot and node and node.id != snapshot.self_id)
        return True

    def action_accept(self) -> None:
        self._answer(accept=True)

    def action_decline(self) -> None:
        self._answer(accept=False)

    def _answer(self, accept: bool) -> None:
        chosen = self.query_one("#requests", Rows).selected
        if chosen is None:
            self.host.tell("Choose one of the machines that want to join with the arrow keys first")
            return
        self.run_worker(self.host.ask(AcceptWorker(id=chosen) if accept else DeclineWorker(id=chosen)))

    def action_launch(self) -> None:
        from daisychain.tui.screens.launch import LaunchScreen

        self.app.push_screen(LaunchScreen())

    def action_check(self) -> None:
        from daisychain.tui.screens.check import Check

        self.app.push_screen(Check())

    def action_run(self) -> None:
        from daisychain.tui.screens.run import RunScreen

        self.app.push_screen(RunScreen())

    def action_invite(self) -> None:
        self.app.push_screen(Invite())

    def action_forget(self) -> None:
        node = self._selected_node(self.host.snapshot)
        if node is None:
            return
        question: tuple[Line, ...] = (
            (("Forget ", ""), (clean(node.name), "bold"), ("?", "")),
            (("It leaves the chain and needs a new invitation to come back.", "dim"),),
        )

        def decided(yes: bool | None) -> None:
            if yes:
                self.run_worker(self.host.ask(Forget(node=node.id)))

        self.app.push_screen(Confirm("Forget a node", question), decided)
