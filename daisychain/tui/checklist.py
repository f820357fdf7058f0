"""The widgets of a check: the list of verdicts with what is said of the selected one, and the square of ways."""

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.message import Message

from daisychain.facts import Verdict
from daisychain.tui.presentation.checklist import check_rows, first_to_see, selected_lines
from daisychain.tui.widgets import Lines, Rows

CHROME = 7
"""Cells of a row's width that margin, border, padding and scroll bar take."""


class Checklist(Vertical):
    """Verdicts by node, and below them the selected one in full."""

    class Moved(Message):
        """Another line is selected."""

    def compose(self) -> ComposeResult:
        with Vertical(id="checks-box", classes="box") as checks:
            checks.border_title = "Checks"
            yield Rows(id="checks")
        with VerticalScroll(id="selected-box", classes="box", can_focus=False) as selected:
            selected.border_title = "Selected"
            yield Lines(id="selected")

    @property
    def at(self) -> int | None:
        """The position of the selected verdict among those that were shown."""
        selected = self.query_one(Rows).selected
        return int(selected) if selected is not None else None

    @property
    def has_keys(self) -> bool:
        """Whether the keys go to the list."""
        return self.query_one(Rows).has_focus

    def take_keys(self) -> None:
        self.query_one(Rows).focus()

    def show(self, verdicts: Sequence[Verdict], order: Sequence[str], afresh: bool = False) -> None:
        """Show these by the nodes named in `order`; afresh: with the first refused one selected."""
        rows = check_rows(verdicts, order, self.app.size.width - CHROME)
        found = self.query_one(Rows)
        found.show(rows, [row for row, _ in rows if not row.isdecimal()])
        first = first_to_see(verdicts, order)
        if afresh and first is not None:
            found.select(str(first))

    def explain(self, verdict: Verdict | None, fix: str) -> None:
        """Say of the selected verdict all there is; fix: what `f` does about it."""
        self.query_one("#selected", Lines).show(selected_lines(verdict, fix))

    def on_rows_moved(self, event: Rows.Moved) -> None:
        event.stop()
        rows = self.query_one(Rows)
        at = rows.highlighted
        if at and rows.options[at - 1].disabled and rows.scroll_offset.y >= at:
            # a heading can't be selected, and would stay hidden above
            rows.scroll_to(y=at - 1, animate=False)
        self.post_message(self.Moved())


class Matrix(Lines, can_focus=True):
    """The square of ways; the arrow keys ask for another cell."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(0, -1)", show=False),
        Binding("right", "move(0, 1)", show=False),
        Binding("up", "move(-1, 0)", show=False),
        Binding("down", "move(1, 0)", show=False),
    ]

    class Moved(Message):
        """So many rows and columns further."""

        def __init__(self, rows: int, columns: int) -> None:
            super().__init__()
            self.rows, self.columns = rows, columns

    def action_move(self, rows: int, columns: int) -> None:
        self.post_message(self.Moved(rows, columns))


def moved(at: tuple[int, int], rows: int, columns: int, size: int) -> tuple[int, int]:
    """The cell so much further in a square of `size`, at its edge at most."""
    return max(0, min(size - 1, at[0] + rows)), max(0, min(size - 1, at[1] + columns))
