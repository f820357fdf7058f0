"""The chain as a whole."""

from daisychain.facts import Snapshot
from daisychain.tui.text import Line, clean, number


def chain_title(snapshot: Snapshot) -> Line:
    """The line on top of the cluster screen."""
    alive = [node for node in snapshot.nodes if node.state != "lost"]
    rates = [node.capacity.samples_per_second() for node in alive if node.capacity]
    count = f"{len(alive)} node{'' if len(alive) == 1 else 's'}"
    rate = f" · {number(sum(rates))} samples/s together" if len(rates) > 1 else ""
    return ((count, "bold"), (rate, "dim"))


def advice_line(snapshot: Snapshot) -> Line:
    """One line of advice, or nothing."""
    return (("→ ", "accent"), (clean(snapshot.advice, 400), "")) if snapshot.advice else ()


ALONE: tuple[Line, ...] = (
    (("This machine is alone in its chain. To add another one:", "bold"),),
    (),
    (("  1  ", "accent"), ("on the other machine, run  ", ""), ("daisychain join", "accent")),
    (("  2  ", "accent"), ("compare the six digits on both screens", "")),
    (("  3  ", "accent"), ("press j there and a here", "")),
    (),
    (("No screen there? ", "dim"), ("i", "accent"), (" makes a token to join with instead.", "dim")),
    (("Only trying it? ", "dim"), ("l", "accent"), (" trains the demo on this machine alone.", "dim")),
)
