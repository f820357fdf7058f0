"""What every screen may ask of the app around it."""

import asyncio
from typing import TypeVar, cast

from textual.app import App
from textual.binding import Binding
from textual.screen import ModalScreen, Screen

from daisychain.config import Paths, Settings
from daisychain.errors import DaisyError, LinkError
from daisychain.facts import Node, Snapshot
from daisychain.link.messages import Lend, Message
from daisychain.tui.backend import Backend
from daisychain.tui.text import Line, clean
from daisychain.tui.widgets import Lines

Result = TypeVar("Result")


class Host(App[None]):
    """The app as the screens see it: the newest snapshot, one way to ask, one way to tell a person."""

    def __init__(self, backend: Backend, settings: Settings, paths: Paths) -> None:
        super().__init__()
        self.backend = backend
        self.settings = settings
        self.paths = paths
        self.snapshot: Snapshot | None = None
        self.gone = ""
        """Why the agent can't be reached at the moment; empty while it can."""
        self.no_heads_after_s = 10.0
        """How long the join screen looks before it explains why there may be no heads."""

    def tell(self, text: str, bad: bool = False) -> None:
        """A notice in the corner; never markup."""
        self.notify(
            clean(text, 400), severity="error" if bad else "information", timeout=12 if bad else 5, markup=False
        )

    def copy(self, text: str, what: str) -> None:
        """To the clipboard of the person's terminal, also through ssh (OSC 52)."""
        self.copy_to_clipboard(text)
        self.tell(f"Copied {what}; if nothing arrives, your terminal doesn't take OSC 52")

    async def request(self, message: Message) -> Message:
        """The answer. Raises DaisyError, also where the agent is too slow or the connection breaks."""
        try:
            return await self.backend.ask(message)
        except (OSError, asyncio.TimeoutError) as error:
            why = str(error) or "no answer in time"
            raise LinkError(f"this machine's agent: {why}", "Try again; its log says more") from error

    async def ask(self, message: Message) -> Message | None:
        """The answer, or None after telling the person why there is none."""
        try:
            return await self.request(message)
        except DaisyError as error:
            self.tell(str(error), bad=True)
            return None


def banner(host: Host) -> tuple[Line, ...]:
    """The line that says that what is on the screen is old."""
    if not host.gone:
        return ()
    return ((("! agent gone; reconnecting", "warn"), (f" — {clean(host.gone)}", "dim")),)


class DaisyScreen(Screen[None]):
    """A screen that shows snapshots. `show` gets the newest one, whenever it or the size changes."""

    AUTO_FOCUS = None
    TAKE_OR_GIVE = (Binding("p", "take", "take back"), Binding("p", "give", "give back"))
    """The owner's key to this machine; one of the two is offered."""

    @property
    def host(self) -> Host:
        return cast("Host", self.app)

    def show(self, snapshot: Snapshot) -> None:
        raise NotImplementedError

    def refresh_snapshot(self) -> None:
        """Show the newest snapshot and whether it is old."""
        if not self.is_mounted or not self.is_attached:
            return
        lines = banner(self.host)
        found = self.query_one("#banner", Lines)
        found.display = bool(lines)
        found.show(lines)
        if self.host.snapshot is not None:
            self.show(self.host.snapshot)

    @property
    def own(self) -> Node | None:
        """This machine's record; None while unknown."""
        snapshot = self.host.snapshot
        return next((n for n in snapshot.nodes if n.id == snapshot.self_id), None) if snapshot else None

    def action_take(self) -> None:
        self.run_worker(self.host.ask(Lend(lent=True)))

    def action_give(self) -> None:
        self.run_worker(self.host.ask(Lend(lent=False)))

    def on_mount(self) -> None:
        self.refresh_snapshot()

    def on_resize(self) -> None:
        # sizes of children are known only after the layout that follows
        self.call_after_refresh(self.refresh_snapshot)

    def on_screen_resume(self) -> None:
        self.call_after_refresh(self.refresh_snapshot)


class Dialog(ModalScreen[Result]):
    """A box over the screen below."""

    @property
    def host(self) -> Host:
        return cast("Host", self.app)
