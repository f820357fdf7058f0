"""The seam between the screens and this machine's agent: two methods, so that a fake is short."""

from collections.abc import AsyncIterator
from typing import Protocol

from daisychain.facts import Snapshot
from daisychain.link.messages import Message


class Backend(Protocol):
    """What the screens need of an agent."""

    async def ask(self, message: Message) -> Message:
        """The answer to one request. Raises DaisyError in words for people when refused or unreachable."""
        ...

    def snapshots(self) -> AsyncIterator[Snapshot]:
        """The world: once at once, then when it changes, at most once a second.

        Ends, or raises DaisyError, when the agent is gone; calling it again tries to reach the agent again.
        """
        ...
