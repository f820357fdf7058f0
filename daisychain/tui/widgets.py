"""The few widgets that the screens share: coloured text and a list of rows. Neither parses markup."""

from collections.abc import Collection, Iterable, Sequence

from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from daisychain.tui.text import ColourRole, Line

STYLES: dict[ColourRole, str] = {
    "": "",
    "bold": "bold",
    "dim": "$dim",
    "accent": "$accent",
    "ok": "$success",
    "warn": "$warning",
    "bad": "$error",
    "compute": "$compute",
    "sync": "$sync",
    "wait": "$wait",
}


def content(line: Line) -> Content:
    """One line as Textual draws it."""
    return Content.assemble(*((text, STYLES[role]) for text, role in line if text))


class Lines(Static):
    """Lines of text; showing the same again costs nothing."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__("", id=id, classes=classes, markup=False)
        self.lines: tuple[Line, ...] = ()

    def show(self, lines: Iterable[Line]) -> None:
        wanted = tuple(lines)
        if wanted != self.lines:
            self.lines = wanted
            self.update(Content("\n").join(content(line) for line in wanted))


class Rows(OptionList):
    """A list of rows with ids, one of them selected.

    A single row is selected at once. When the selected row disappears while others stay, none is selected: a key
    pressed at that moment must not hit another row. Enter is left to the screen.
    """

    class Moved(Message):
        """Another row is selected, or none."""

    def __init__(self, *, id: str | None = None, preselect: bool = False) -> None:
        super().__init__(id=id, markup=False, compact=True)
        self.rows: dict[str, Line] = {}
        self.preselect = preselect
        """Select the first row even when there are several."""

    @property
    def selected(self) -> str | None:
        """Id of the selected row."""
        option = self.highlighted_option
        return option.id if option else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "select"

    def select(self, row: str) -> None:
        """Select the row with this id."""
        self.highlighted = list(self.rows).index(row)

    def show(self, rows: Sequence[tuple[str, Line]], headings: Collection[str] = ()) -> None:
        """Show these rows, keeping the selection by id; headings: ids of those that can't be selected."""
        wanted = dict(rows)
        if list(wanted) == list(self.rows):
            for row, line in wanted.items():
                if line != self.rows[row]:
                    self.replace_option_prompt(row, content(line))
        else:
            self._replace(wanted, headings)
        self.rows = wanted

    def _replace(self, wanted: dict[str, Line], headings: Collection[str]) -> None:
        chosen, was_empty = self.selected, not self.rows
        self.set_options(Option(content(line), id=row, disabled=row in headings) for row, line in wanted.items())
        if chosen in wanted:
            self.highlighted = list(wanted).index(chosen)
        elif wanted and (self.preselect or (was_empty and len(wanted) == 1)):
            self.highlighted = 0
        else:
            self.highlighted = None

    def on_option_list_option_highlighted(self) -> None:
        self.post_message(self.Moved())
