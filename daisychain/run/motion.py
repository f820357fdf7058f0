"""Whether a run still moves: pure. A way that closes during a step is no error to gloo, only silence."""

STALLED_S = 10.0
"""How long no step may be completed before it is looked into, and at least STALLED_STEPS steps; then twice as long."""
STALLED_STEPS = 5


class Motion:
    """Feed it where the run stands; it says when to look into why that doesn't change."""

    def __init__(self) -> None:
        self._stands = (0, 0)
        self._since_s = 0.0
        self._limit_s = STALLED_S

    def is_stalled(self, stands: tuple[int, int], now_s: float, *, rests: bool, step_s: float) -> bool:
        """stands: generation and step. rests: nothing is to move now. step_s: what a step takes; 0: unknown.

        True once, and again after twice the time, for as long as nothing moves.
        """
        if stands != self._stands or rests:
            self._stands, self._since_s, self._limit_s = stands, now_s, STALLED_S
            return False
        stood_s = now_s - self._since_s
        if stood_s <= max(self._limit_s, STALLED_STEPS * step_s):
            return False
        self._limit_s = 2 * stood_s
        return True
