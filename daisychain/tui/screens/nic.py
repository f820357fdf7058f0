"""Choosing this machine's network interface, for the next start of its agent."""

import asyncio
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Footer

from daisychain import config
from daisychain.link.messages import ListNics, Nics
from daisychain.tui.host import Dialog, Host
from daisychain.tui.presentation.nics import about_nic, nic_rows, nic_saved, unusable
from daisychain.tui.widgets import Lines, Rows


class ChooseNic(Dialog[str]):
    """Every NIC of this machine; dismissed with the name of the one to use from now on, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "use it", key_display="enter"),
        Binding("escape,b,q", "dismiss(None)", "back", key_display="esc"),
    ]

    def __init__(self, nics: Nics) -> None:
        super().__init__()
        self.nics = nics

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog wide short") as box:
            box.border_title = "Network interfaces of this machine"
            yield Rows(id="nics")
            yield Lines(id="about-nic")
        yield Footer()

    def on_mount(self) -> None:
        rows = self.query_one(Rows)
        rows.focus()
        self._show()
        if self.nics.chosen in rows.rows and self.nics.chosen not in unusable(self.nics):
            rows.select(self.nics.chosen)

    def _show(self) -> None:
        rows = self.query_one(Rows)
        rows.show(nic_rows(self.nics, min(100, self.app.size.width - 10)), unusable(self.nics))
        self.query_one(Lines).show(about_nic(self.nics, rows.selected))

    def on_rows_moved(self) -> None:
        self._show()

    def action_choose(self) -> None:
        chosen = self.query_one(Rows).selected
        if chosen is not None:
            self.dismiss(chosen if chosen != self.nics.chosen else None)


async def choose_nic(host: Host) -> None:
    """Let the person choose, and remember the choice in config.toml."""
    nics = await host.ask(ListNics())
    if not isinstance(nics, Nics):
        return

    async def save(name: str) -> None:
        try:
            await asyncio.to_thread(config.save, host.paths, "nic", name)
        except OSError as error:
            host.tell(f"{host.paths.config_file}: {error.strerror}; the choice is not remembered", bad=True)
        else:
            host.tell(nic_saved(name))

    def chosen(name: str | None) -> None:
        if name is not None:
            host.run_worker(save(name))

    host.push_screen(ChooseNic(nics), chosen)
