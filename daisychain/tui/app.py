"""The app: follows the agent's snapshots, hands them to the screens, and nothing else."""

import asyncio
from typing import ClassVar, Literal

from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.worker import WorkerFailed

from daisychain import config
from daisychain.config import Paths, Settings
from daisychain.errors import DaisyError
from daisychain.facts import ENDED, Snapshot
from daisychain.link.messages import BeWorker
from daisychain.tui import themes
from daisychain.tui.backend import Backend
from daisychain.tui.host import DaisyScreen, Host

RETRY_S = 1.0


class DaisyApp(Host):
    """The whole interface. Run it with terminal.run_app, which keeps the terminal clean.

    backend: where snapshots come from and requests go. start: the screen to begin with; "join" makes this machine
    a worker as `join` says (default: look for heads); "run" shows the run, with the cluster behind it.
    """

    TITLE = "DaisyChain"
    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "quit", show=False, priority=True)]

    def __init__(
        self,
        backend: Backend,
        settings: Settings,
        paths: Paths,
        start: Literal["cluster", "join", "run"] = "cluster",
        join: BeWorker | None = None,
    ) -> None:
        self.theme_files, self.theme_problems = themes.load([themes.shipped_folder(), paths.config / "themes"])
        super().__init__(backend, settings, paths)
        self.start = start
        self.retry_s = RETRY_S
        self.run_outlives = True
        """Whether a run goes on when the app ends; not in the demo, whose agents end with it."""
        self.crash: Exception | None = None
        """What ended the app, when it wasn't a person."""
        self._be_worker = (join or BeWorker()) if start == "join" else None
        self._due = False
        for theme in self.theme_files.values():
            self.register_theme(themes.to_textual(theme))
        self.theme = settings.theme if settings.theme in self.theme_files else themes.FALLBACK

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return themes.variables(themes.BUILT_IN.colours)

    def get_default_screen(self) -> Screen[None]:
        if self.start == "join":
            from daisychain.tui.screens.join import Join

            return Join()
        from daisychain.tui.screens.cluster import Cluster

        return Cluster()

    def on_mount(self) -> None:
        for problem in self.theme_problems:
            self.tell(str(problem), bad=True)
        if self.settings.theme not in self.theme_files:
            known = ", ".join(self.theme_files)
            self.tell(f"There is no theme called {self.settings.theme!r}. Known: {known}", bad=True)
        if self.start == "run":
            from daisychain.tui.screens.run import RunScreen

            self.push_screen(RunScreen())
        self.run_worker(self._follow(), name="follow")

    # --- following the agent ---------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            why = "it ended its connection"
            try:
                first = True
                async for snapshot in self.backend.snapshots():
                    if first and self._be_worker is not None:
                        self.run_worker(self.ask(self._be_worker))
                        # an agent that starts again knows the head; the token is used up
                        self._be_worker = BeWorker()
                    first = False
                    self.gone = ""
                    self._take(snapshot)
            except (DaisyError, OSError, asyncio.TimeoutError) as error:
                why = str(error) or type(error).__name__
            self.gone = why
            self._refresh_screens()
            await asyncio.sleep(self.retry_s)

    def _take(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        if not self._due:
            # when several arrive before the screen gets its turn, only the newest is drawn
            self._due = True
            self.call_later(self._show_newest)

    async def _show_newest(self) -> None:
        self._due = False
        await self._turn_to_worker()
        self._refresh_screens()

    async def _turn_to_worker(self) -> None:
        """A machine that joined a chain shows its membership, however the screen was opened."""
        from daisychain.tui.screens.cluster import Cluster

        if self.snapshot and self.snapshot.role == "worker" and isinstance(self.screen, Cluster):
            from daisychain.tui.screens.join import Join

            await self.push_screen(Join())

    def _refresh_screens(self) -> None:
        for screen in self.screen_stack:
            if isinstance(screen, DaisyScreen):
                screen.refresh_snapshot()

    # --- keys that work everywhere ---------------------------------------------------------------

    async def action_quit(self) -> None:
        run = self.snapshot.run if self.snapshot else None
        going = run is not None and run.phase not in ENDED
        goes_on = "The run goes on. `daisychain` shows it again, `daisychain stop` ends it."
        self.exit(message=(goes_on if self.run_outlives else "The demo ends here.") if going else None)

    def action_help(self) -> None:
        from daisychain.tui.screens.help import Help

        if not isinstance(self.screen, Help):
            self.push_screen(Help())

    async def action_next_theme(self) -> None:
        self.theme = themes.after(list(self.theme_files), self.theme)
        self.tell(f"Theme: {self.theme}")
        try:
            await asyncio.to_thread(config.save_theme, self.paths, self.theme)
        except OSError as error:
            self.tell(f"{self.paths.config_file}: {error.strerror}; the theme is not remembered", bad=True)

    def _handle_exception(self, error: Exception) -> None:
        # Textual prints a traceback of many screens; ours goes to a file, and run_app names it
        cause = error.error if isinstance(error, WorkerFailed) else error
        self.crash = self.crash or (cause if isinstance(cause, Exception) else error)
        super()._handle_exception(error)
        self._exit_renderables.clear()
