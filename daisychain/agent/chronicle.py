"""What is told of a run while it goes on: to the screens, to its log, and to its folder."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from daisychain.errors import PreflightError
from daisychain.facts import Phase, Verdict
from daisychain.run.folder import RunFolder
from daisychain.run.lifecycle import Tracker


class Chronicle:
    """One run's. Every part of the head that works on the run tells it what happens."""

    def __init__(
        self, tracker: Tracker, folder: RunFolder, clock: Callable[[], float], changed: Callable[[], None]
    ) -> None:
        """changed: called when the screens should show something new."""
        self._tracker, self._folder, self._clock, self._changed = tracker, folder, clock, changed
        self._started_s = clock()

    def enter(self, phase: Phase, detail: str) -> None:
        """The run is in this phase from now on."""
        self._tracker.enter(phase, detail)
        self._changed()

    def tell(self, detail: str) -> None:
        """What is being done, for as long as it is."""
        self._tracker.tell(detail)
        self._changed()

    def note(self, text: str) -> None:
        """A line of the run's log."""
        self._tracker.note(text, self._clock())

    def event(self, name: str, **facts: Any) -> None:
        """A line of events.jsonl."""
        self._folder.event(self._clock() - self._started_s, name, **facts)

    def refuse_if(self, verdicts: Sequence[Verdict]) -> None:
        """Raises PreflightError when one of them refuses."""
        if any(verdict.level == "refuse" for verdict in verdicts):
            self.event("refused", verdicts=msgspec.to_builtins(verdicts))
            raise PreflightError(verdicts)
