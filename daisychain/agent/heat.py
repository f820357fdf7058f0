"""How hot this machine is while a run goes on: hot processors slow down, and shares follow; this says why. Pure."""

import msgspec

from daisychain.plan.checks import is_hot


class Heat(msgspec.Struct, frozen=True):
    """What is known of it."""

    hot: bool = False
    hot_c: float | None = None
    """The sensor nearest to its limit, when `hot` last changed."""
    limit_c: float | None = None

    def seen(self, hot_c: float | None, limit_c: float | None) -> "Heat":
        """After another look; the very same object while nothing is news."""
        hot = is_hot(hot_c, limit_c, self.hot)
        return self if hot == self.hot else Heat(hot, hot_c, limit_c)

    @property
    def detail(self) -> str:
        """For the node's record; empty while it isn't hot."""
        return f"hot: {self.hot_c:.0f} °C, of {self.limit_c:.0f} °C at most" if self.hot else ""

    @property
    def news(self) -> str:
        """For the run's log."""
        if self.hot:
            return f"its processor is {self.detail}; it slows down, and its share follows. Let air to it"
        return "its processor has cooled down" + ("" if self.hot_c is None else f" to {self.hot_c:.0f} °C")
