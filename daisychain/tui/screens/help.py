"""`?`: every key and every word, with a filter."""

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Footer, Input

from daisychain.tui.host import Dialog
from daisychain.tui.text import Line, fit
from daisychain.tui.widgets import Lines

ENTRIES: tuple[tuple[str, str, str], ...] = (
    ("everywhere", "?", "this help"),
    ("everywhere", "q", "quit; the agent and any run go on without the screen"),
    ("everywhere", "T", "next theme, remembered; NO_COLOR turns colours off"),
    ("everywhere", "↑ ↓ tab", "select a row; go to the next list or field"),
    ("cluster", "l", "launch a run; enter there launches the demo"),
    ("cluster", "d", "check the chain: what is well and what isn't, and what to do"),
    ("cluster", "r", "the run in progress, or the last one"),
    ("cluster", "i", "invite: a token and the command for the other machine"),
    ("cluster", "a", "accept the selected machine that wants to join"),
    ("cluster", "x", "decline it"),
    ("cluster", "f", "forget the selected node; asks first"),
    ("cluster", "p", "with this machine selected: take it out of the run, give it back"),
    ("join", "j", "join the selected head; it may then run programs here"),
    ("join", "e", "type the address of a head"),
    ("join", "p", "on a worker: take this machine back from the run, give it back"),
    ("launch", "← →", "choose the job"),
    ("launch", "enter", "check every node, then launch"),
    ("launch", "esc", "back"),
    ("launch", "↓", "after a refusal: into its list; f and c there as in a check"),
    ("check", "enter", "evidence: what the selected line was judged by"),
    ("check", "x", "matrix: which node reaches which; back to the list"),
    ("check", "f", "fix: what this program can do itself, such as leaving a node out"),
    ("check", "c", "copy what to do about the selected line"),
    ("check", "r", "again: check everything once more"),
    ("check", "n", "choose this machine's network interface, for its agent's next start"),
    ("check", "m", "measure the speed of the selected line's node again"),
    ("check", "b esc", "back"),
    ("run", "s", "stop the run on every node; asks first"),
    ("run", "p", "pause the run, resume it; on a worker as on its join screen"),
    ("run", "v", "in a small terminal: loss, step time or log"),
    ("run", "L", "launch anyway what was refused for its forecast"),
    ("run", "c", "copy the error and its log's path, or the folder's"),
    ("run", "b esc", "back; the run goes on"),
    ("words", "share", "samples of each global batch that a node computes"),
    ("words", "samples/s", "a node alone: measured on a small reference model"),
    ("words", "compute", "forward, backward and optimizer"),
    ("words", "sync", "exchanging gradients once all are there"),
    ("words", "wait", "for slower nodes"),
    ("words", "‖ paused", "no step is done until somebody resumes the run; the ranks wait"),
    ("words", "‖ in use", "by its owner: the run goes on without that node until it is given back"),
    ("words", "✓ ! ✗", "fine, works but look, does not work"),
)
"""(where, key or word, what it does)."""


def matching(filter_text: str) -> list[Line]:
    """The entries that hold every word of the filter, under the headings of where they count."""
    words = filter_text.lower().split()
    lines: list[Line] = []
    heading = ""
    for where, key, meaning in ENTRIES:
        if not all(word in f"{where} {key} {meaning}".lower() for word in words):
            continue
        if where != heading:
            lines += [(), ((where, "bold"),)] if lines else [((where, "bold"),)]
            heading = where
        lines.append(((f"  {fit(key, 11)}", "accent"), (meaning, "")))
    return lines or [(("nothing matches", "dim"),)]


class Help(Dialog[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "back"),
        Binding("up", "scroll(-1)", show=False),
        Binding("down", "scroll(1)", "scroll", key_display="↑↓"),
    ]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog tall") as box:
            box.border_title = "Help"
            yield Input(placeholder="type to search", id="filter", compact=True)
            with VerticalScroll(can_focus=False):
                yield Lines(id="entries")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#entries", Lines).show(matching(""))
        self.query_one(Input).focus()

    @on(Input.Changed)
    def search(self, event: Input.Changed) -> None:
        self.query_one("#entries", Lines).show(matching(event.value))

    def action_scroll(self, lines: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)
