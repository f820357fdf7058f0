"""Which nodes train together, through losses and returns: pure. Events in, actions out; time is an argument.

A run's nodes have fixed seats. A generation is an agreed set of seats; when one of them is lost, the others let go of
it, say that they wait, and become the next generation. A rank that has started, or was thawed, waits at the door: the
generation is ended between two steps and the next one includes it. Nobody waits for a node that is gone.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

PATIENCE_S = 60.0
"""How long ranks that are ready wait for others that still load torch, before the first generation."""
RETRY_S = (0.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0)
"""How long a node stays out after its first, second ... loss."""
DEATHS = 3
"""A rank whose process died so often, each time before it was steady, is not started again."""
STEADY_S = 10.0
"""So long in generations, and an earlier death says nothing about the next one."""
RELIABLE_S = 300.0
"""So long, and earlier losses are forgiven."""
LETTING_GO_S = 8.0
"""How long a rank may take to let go of a broken generation, and at least LETTING_GO_STEPS steps: it may compute."""
LETTING_GO_STEPS = 4
GIVE_UP_AFTER = 3
"""Formations in a row that failed to connect, before the run ends."""
NOBODY_LEFT = "no node is left that could go on"

Standing = Literal["away", "starting", "waiting", "in", "frozen"]


class Start(msgspec.Struct, frozen=True):
    """Start a rank on this seat."""

    seat: int


class Break(msgspec.Struct, frozen=True):
    """Tell these ranks that the generation has lost one."""

    seats: tuple[int, ...]
    generation: int


class Boundary(msgspec.Struct, frozen=True):
    """Ask these ranks to end the generation after a step."""

    seats: tuple[int, ...]
    generation: int


class Form(msgspec.Struct, frozen=True):
    """These ranks, in this order, are the next generation; the newest of them has completed so many steps."""

    seats: tuple[int, ...]
    generation: int
    completed: int


class Leave(msgspec.Struct, frozen=True):
    """Every rank has finished: let these end."""

    seats: tuple[int, ...]


class Hung(msgspec.Struct, frozen=True):
    """This rank doesn't let go of a broken generation; the others go on without it until it does."""

    seat: int


class Fail(msgspec.Struct, frozen=True):
    """There is nobody to go on with."""

    why: str


Action = Start | Break | Boundary | Form | Leave | Hung | Fail


class Seat:
    """One node's place in the run."""

    def __init__(self) -> None:
        self.standing: Standing = "away"
        self.parked = False
        """While frozen: whether it was waiting before."""
        self.reachable = True
        self.lent = False
        """Its owner uses the machine: it takes no part until he gives it back."""
        self.port = 0
        self.completed = 0
        self.proven = False
        """Whether it has been in a generation: the others can reach it."""
        self.losses = self.deaths = 0
        self.since_s: float | None = None
        """When it came in; None while it is out."""
        self.out_until_s = 0.0
        self.done = False
        self.first = False
        """Whether it is the first of the generation that it was in last: results come from there."""
        self.given_up = ""
        """Why it isn't started any more; empty while it may be."""


class Generations:
    """The decisions of one run. Feed it events, then perform what `decide` returns."""

    def __init__(self, seats: int) -> None:
        self.seats = [Seat() for _ in range(seats)]
        self.generation = 0
        self.members: tuple[int, ...] = ()
        """Seats of the newest generation, in rank order."""
        self.paused = False
        self.step_s = 0.0
        """What a step takes at present; 0: unknown."""
        self._broken = False
        """Whether the newest generation is over, or none was ever formed."""
        self._lost_one = False
        """Whether the newest generation has lost a member."""
        self._told: set[tuple[str, int]] = set()
        self._told_s: float | None = None
        """Since when members of the newest generation are told that it is broken."""
        self._joined: set[int] = set()
        self._failed: set[int] = set()
        """Newest generations that didn't come about."""
        self._why = ""
        self._left = self._has_results = False
        self._ready_since_s: float | None = None

    # --- events ------------------------------------------------------------------------------------------

    def add(self) -> int:
        """A node that wasn't there at the launch; its seat."""
        self.seats.append(Seat())
        return len(self.seats) - 1

    def waiting(self, seat: int, *, port: int, generation: int, completed: int, why: str) -> None:
        """A rank is ready to be in a generation. why: what ended the last one for it."""
        place = self.seats[seat]
        if generation == self.generation and seat in self.members:
            if why and seat not in self._joined and not self._lost_one:
                self._failed.add(generation)
                self._why = why
            # without a reason all its ranks have ended it together, between two steps
            self._broken = self._broken or bool(why)
        place.standing, place.port, place.completed = "waiting", port, completed

    def joined(self, seat: int, generation: int) -> None:
        """A rank goes on in a generation."""
        if generation == self.generation:
            self._joined.add(seat)
            self.seats[seat].proven = True
            self._failed.clear()

    def exited(self, seat: int, now_s: float, why: str = "", *, hopeless: bool = True) -> None:
        """A rank's process has ended. why: of what; hopeless: of something that would end another try too."""
        place = self.seats[seat]
        self._lose(seat, now_s)
        place.standing = "away"
        place.deaths += 1
        if hopeless or place.deaths >= DEATHS:
            place.given_up = place.given_up or why

    def frozen(self, seat: int, now_s: float) -> None:
        """A rank's process says nothing any more, though its agent lives."""
        place = self.seats[seat]
        if place.standing in ("in", "waiting"):
            self._lose(seat, now_s)
            place.parked, place.standing = place.standing == "waiting", "frozen"

    def lost(self, seat: int, now_s: float) -> None:
        """A node can't be reached."""
        if self.seats[seat].reachable:
            self._lose(seat, now_s)
            self.seats[seat].reachable = False

    def back(self, seat: int, alive: bool) -> None:
        """A node is reachable again. alive: its rank still waits there, and will say so once it is told to."""
        place = self.seats[seat]
        place.reachable = True
        place.standing, place.parked = "frozen" if alive else "away", False
        self._told -= {("break", seat)}

    def thawed(self, seat: int) -> None:
        """A frozen rank's process runs again; unless it waited before, it says so once it sees what it missed."""
        place = self.seats[seat]
        if place.standing == "frozen" and place.parked:
            place.standing = "waiting"

    def done(self, seat: int) -> None:
        """A rank's script has ended well; the process helps the others until all have."""
        place = self.seats[seat]
        place.done = True
        self._has_results = self._has_results or place.first or not self.members

    def leave_out(self, seat: int, why: str) -> None:
        """A node takes no further part; the others go on at once, without the step in flight."""
        self.seats[seat].given_up = why
        self._broken = self._broken or seat in self.members

    def lend(self, seat: int, lent: bool) -> None:
        """Its owner takes a node out, or gives it back."""
        self.seats[seat].lent = lent

    def _lose(self, seat: int, now_s: float) -> None:
        place = self.seats[seat]
        lasted_s = 0.0 if place.since_s is None else now_s - place.since_s
        place.since_s = None
        if lasted_s >= STEADY_S:
            place.deaths = 0
        if lasted_s >= RELIABLE_S:
            place.losses = 0
        place.losses += 1
        place.out_until_s = now_s + RETRY_S[min(place.losses, len(RETRY_S)) - 1]
        if seat in self.members:
            # which explains why it doesn't come about
            self._broken = self._lost_one = True
            self._failed.discard(self.generation)

    @property
    def finished(self) -> bool:
        """Whether every rank has finished its work."""
        return self._left

    # --- decisions ----------------------------------------------------------------------------------------

    def decide(self, now_s: float) -> list[Action]:
        """What to do now. Nothing is asked for twice."""
        if self._left:
            return []
        if len(self._failed) >= GIVE_UP_AFTER and not self._leave_out_the_unproven():
            return [Fail(self._why)]
        if self._has_results and not self._at_work:
            self._left = True
            here = (s for s, place in enumerate(self.seats) if place.reachable and place.standing in ("in", "waiting"))
            return [Leave(tuple(here))]
        actions: list[Action] = [*self._hung(now_s), *self._starts(now_s), *self._breaks(now_s)]
        if not self._going and not self._hope:
            return [*actions, Fail(NOBODY_LEFT)]
        if self._over:
            return actions + self._form(now_s)
        if self._wishes(now_s):
            actions += self._once("boundary", self.members, Boundary)
        return actions

    def _leave_out_the_unproven(self) -> bool:
        """Whether the ranks fail to connect only since some that were never among them are there."""
        new = [seat for seat in self.members if not self.seats[seat].proven]
        if not new or len(new) == len(self.members):
            return False
        for seat in new:
            self.seats[seat].given_up = self._why
        self._failed.clear()
        return True

    def _starts(self, now_s: float) -> Iterable[Start]:
        for seat, place in enumerate(self.seats):
            may = place.reachable and not place.given_up and not place.lent and not place.done
            if may and place.standing == "away" and self._is_its_turn(place, now_s):
                place.standing, place.out_until_s = "starting", min(place.out_until_s, now_s)
                yield Start(seat)

    def _hung(self, now_s: float) -> Iterable[Hung]:
        """Members that were told long ago that their generation is broken count as frozen from now on."""
        limit_s = max(LETTING_GO_S, LETTING_GO_STEPS * self.step_s)
        if self._told_s is not None and now_s - self._told_s > limit_s:
            for seat in self.members:
                if self.seats[seat].standing == "in" and self.seats[seat].reachable:
                    self.frozen(seat, now_s)
                    yield Hung(seat)

    def _breaks(self, now_s: float) -> list[Action]:
        """Whoever isn't where the others are is told, once: members of a broken generation, and returned ranks."""
        broken = [
            s for s in self.members if self._broken and self.seats[s].standing == "in" and self.seats[s].reachable
        ]
        if broken and self._told_s is None:
            self._told_s = now_s
        returned = [s for s, place in enumerate(self.seats) if place.standing == "frozen" and place.reachable]
        return self._once("break", [*broken, *returned], Break)

    def _once(self, what: str, seats: Iterable[int], action: type[Break] | type[Boundary]) -> list[Action]:
        new = tuple(seat for seat in seats if (what, seat) not in self._told)
        self._told |= {(what, seat) for seat in new}
        return [action(new, self.generation)] if new else []

    @property
    def _over(self) -> bool:
        """Whether no rank is in the newest generation any more."""
        return not any(self.seats[seat].standing == "in" and self.seats[seat].reachable for seat in self.members)

    @property
    def _at_work(self) -> bool:
        """Whether results aren't all: a member of the newest generation works; before any generation, anybody does."""
        standings = ("in", "waiting") if self.members else ("in", "waiting", "starting")
        return any(
            place.reachable and not place.done and place.standing in standings
            for seat, place in enumerate(self.seats)
            if seat in self.members or not self.members
        )

    @property
    def _going(self) -> bool:
        """Whether some rank has work left and is able to do it."""
        able = [place for place in self.seats if place.reachable and place.standing in ("in", "waiting", "frozen")]
        return any(not place.done and not place.given_up for place in able)

    @property
    def _hope(self) -> bool:
        """Whether a rank may still come from somewhere."""
        return any(
            place.reachable and not place.done and not place.given_up and place.standing in ("away", "starting")
            for place in self.seats
        )

    def _ready(self, now_s: float) -> list[int]:
        return [
            seat
            for seat, place in enumerate(self.seats)
            if place.standing == "waiting" and place.reachable and not place.lent and not place.given_up
            if self._is_its_turn(place, now_s)
        ]

    def _is_its_turn(self, place: Seat, now_s: float) -> bool:
        """Whether it has been out long enough; while nobody else works or is about to, there is nobody to spare."""
        return now_s >= place.out_until_s or not any(
            other.standing in ("in", "starting") or (other.standing == "waiting" and now_s >= other.out_until_s)
            for other in self.seats
            if other is not place and other.reachable and not other.given_up
        )

    def _wishes(self, now_s: float) -> bool:
        """Whether the generation should end between two steps: to pause, to let someone in, or to let someone go."""
        if self._broken or any(self.seats[seat].done for seat in self.members):
            return False
        return self.paused or bool(self._ready(now_s)) or any(self.seats[seat].lent for seat in self.members)

    def _form(self, now_s: float) -> list[Action]:
        # whoever has work left goes first: results come from the first, and those who are done make none
        ready = sorted(self._ready(now_s), key=lambda seat: self.seats[seat].done)
        if self.paused or not ready or self.seats[ready[0]].done or not self._patient(now_s):
            return []
        self.generation += 1
        self.members, self._joined = tuple(ready), set()
        self._broken = self._lost_one = False
        self._told_s = None
        self._told = {(what, seat) for what, seat in self._told if self.seats[seat].standing == "frozen"}
        for seat in ready:
            self.seats[seat].standing = "in"
            self.seats[seat].since_s = now_s if self.seats[seat].since_s is None else self.seats[seat].since_s
            self.seats[seat].first = seat == ready[0]
        return [Form(self.members, self.generation, max(self.seats[seat].completed for seat in ready))]

    def _patient(self, now_s: float) -> bool:
        """Whether it is time: the first generation waits a while for ranks that still load."""
        loading = any(place.standing == "starting" and place.reachable for place in self.seats)
        if self.generation or not loading:
            return True
        self._ready_since_s = now_s if self._ready_since_s is None else self._ready_since_s
        return now_s - self._ready_since_s > PATIENCE_S
