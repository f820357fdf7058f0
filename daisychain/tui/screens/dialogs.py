"""The small boxes: yes or no, something long to read, an address, an invitation."""

import shlex
from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Footer, Input

from daisychain.errors import UsageError
from daisychain.link.messages import Invitation, MakeInvite
from daisychain.tui.form import parse_address
from daisychain.tui.host import Dialog
from daisychain.tui.presentation import lines_text
from daisychain.tui.text import Line, clean, duration
from daisychain.tui.widgets import Lines


class Confirm(Dialog[bool]):
    """Yes only by `y`; every other way out is no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,enter", "answer(False)", "no", key_display="n"),
    ]

    def __init__(self, title: str, question: tuple[Line, ...]) -> None:
        super().__init__()
        self.title_text = title
        self.question = question

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = self.title_text
            yield Lines(id="question")
        yield Footer()

    def on_mount(self) -> None:
        keys: Line = (("y", "accent"), ("  yes      ", ""), ("n", "accent"), ("  no", ""))
        self.query_one(Lines).show((*self.question, (), keys))

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)


class Reading(Dialog[None]):
    """More lines than the screen has, to be scrolled."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "scroll(1)", "scroll", key_display="↑↓"),
        Binding("up", "scroll(-1)", show=False),
        Binding("pagedown,space", "scroll(10)", show=False),
        Binding("pageup", "scroll(-10)", show=False),
        Binding("c", "copy", "copy all"),
        Binding("escape,b,q,enter", "dismiss(None)", "back", key_display="esc"),
    ]

    def __init__(self, title: str, lines: Sequence[Line]) -> None:
        super().__init__()
        self.title_text, self.text = title, tuple(lines)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog wide") as box:
            box.border_title = self.title_text
            with VerticalScroll(can_focus=False):
                yield Lines(id="reading")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(Lines).show(self.text)

    def action_scroll(self, lines: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def action_copy(self) -> None:
        self.host.copy(lines_text(self.text), "all of it")


class AskAddress(Dialog[tuple[str, int]]):
    """Asks for the address of a head; dismissed with (host, port), or None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "cancel")]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = "Address of the head"
            yield Lines(id="hint")
            yield Input(placeholder="192.168.1.20", id="address", compact=True)
            yield Lines(id="error")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#hint", Lines).show([(("It stands on the head's screen. Enter contacts it.", "dim"),), ()])
        self.query_one(Input).focus()

    @on(Input.Submitted)
    def accept(self, event: Input.Submitted) -> None:
        try:
            self.dismiss(parse_address(event.value, self.host.settings.port))
        except UsageError as error:
            self.query_one("#error", Lines).show([(), (("✗ ", "bad"), (clean(str(error)), ""))])


class Invite(Dialog[None]):
    """Makes a token and shows the whole command for the other machine."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "copy", "copy the command"),
        Binding("escape,b,q", "dismiss(None)", "back", key_display="esc"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.command = ""

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = "Invitation"
            yield Lines(id="invitation")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(Lines).show([(("◌ making a token …", "accent"),)])
        self.run_worker(self._make(), exit_on_error=True)

    async def _make(self) -> None:
        answer = await self.host.ask(MakeInvite())
        if not isinstance(answer, Invitation):
            self.dismiss(None)
            return
        self.command = shlex.join(["daisychain", "join", answer.address, "--token", answer.token])
        uses = "once" if answer.uses == 1 else f"{answer.uses} times"
        self.query_one(Lines).show([
            (("On the other machine, type:", ""),),
            (),
            ((self.command, "accent"),),
            (),
            (("token  ", "dim"), (clean(answer.token, 400), "bold")),
            (("valid  ", "dim"), (f"{uses}, for {duration(answer.minutes * 60)}", "")),
            (),
            (("Whoever has the token can join; send it as you would a password.", "dim"),),
        ])  # fmt: skip

    def action_copy(self) -> None:
        if self.command:
            self.host.copy(self.command, "the command")
