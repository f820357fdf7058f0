"""What the agent orders while the script runs: JSON lines on stdin, read by a thread of their own. No torch.

{"kind": "form", "formation": {...}}    train together with these ranks from now on
{"kind": "break", "generation": 3}      that generation has lost a rank: let go of its connections, and wait
{"kind": "boundary", "generation": 3}   end that generation after the next step, all ranks alike, and wait
{"kind": "go"}                          what was measured before the first step is judged: begin
{"kind": "save"}                        write a checkpoint when the step is over, and end
{"kind": "leave"}                       every rank has finished: end
{"kind": "trace"}                       write where every thread stands to the log
{"kind": "stop"}, or the pipe's end     die, now
"""

import faulthandler
import threading
from collections.abc import Callable, Iterable

import msgspec

from daisychain.train.task import Formation


class Form(msgspec.Struct, frozen=True, tag_field="kind", tag="form"):
    formation: Formation


class Break(msgspec.Struct, frozen=True, tag_field="kind", tag="break"):
    generation: int


class Boundary(msgspec.Struct, frozen=True, tag_field="kind", tag="boundary"):
    generation: int


class Go(msgspec.Struct, frozen=True, tag_field="kind", tag="go"):
    pass


class Save(msgspec.Struct, frozen=True, tag_field="kind", tag="save"):
    pass


class Leave(msgspec.Struct, frozen=True, tag_field="kind", tag="leave"):
    pass


class Trace(msgspec.Struct, frozen=True, tag_field="kind", tag="trace"):
    pass


class Stop(msgspec.Struct, frozen=True, tag_field="kind", tag="stop"):
    pass


class Orders:
    """The newest orders. `obey` runs in a thread of its own; everything else is for the script's thread."""

    def __init__(self, sever: Callable[[int], None] = lambda _: None) -> None:
        """sever: called with each generation that is broken, in the reading thread, to wake the script's thread."""
        self.sever = sever
        self._news = threading.Condition()
        self._formation: Formation | None = None
        self._broken = self._boundary = -1
        self.save = self.leave = self._go = False

    def obey(self, lines: Iterable[bytes], stop: Callable[[], None]) -> None:
        """Take orders until the last one, then stop. What is no order is ignored."""
        decoder = msgspec.json.Decoder(Form | Break | Boundary | Go | Save | Leave | Trace | Stop)
        for line in lines:
            try:
                order = decoder.decode(line)
            except (msgspec.DecodeError, msgspec.ValidationError):
                continue
            if isinstance(order, Stop):
                break
            if isinstance(order, Trace):
                faulthandler.dump_traceback(all_threads=True)
                continue
            with self._news:
                self._take(order)
                self._news.notify_all()
            if isinstance(order, Break):
                self.sever(order.generation)
        stop()

    def _take(self, order: Form | Break | Boundary | Go | Save | Leave) -> None:
        match order:
            case Form():
                self._formation = order.formation
            case Break():
                self._broken = max(self._broken, order.generation)
            case Boundary():
                self._boundary = max(self._boundary, order.generation)
            case Go():
                self._go = True
            case Save():
                self.save = True
            case Leave():
                self.leave = True

    def broken(self, generation: int) -> bool:
        """Whether this generation, or a later one, was broken."""
        return self._broken >= generation

    def wants_boundary(self, generation: int) -> bool:
        """Whether the chain wants to stop between two steps."""
        return self._boundary >= generation or self.save

    def next_formation(self, after: int) -> Formation | None:
        """Wait for a generation later than `after`, which may be broken already; None when there will be none."""
        with self._news:
            self._news.wait_for(lambda: self.save or self.leave or self._is_new(after))
            return self._formation if self._is_new(after) and not self.save else None

    def wait_go(self, generation: int, timeout_s: float) -> None:
        """Wait until this rank may begin, is wanted otherwise, or nobody has said anything for so long."""
        with self._news:
            self._news.wait_for(lambda: self._go or self.save or self.leave or self.broken(generation), timeout_s)

    def wait_over(self, generation: int) -> None:
        """Wait until this rank is wanted again: to end, or because its generation is broken."""
        with self._news:
            self._news.wait_for(lambda: self.save or self.leave or self.broken(generation))

    def _is_new(self, after: int) -> bool:
        return self._formation is not None and self._formation.generation > after
