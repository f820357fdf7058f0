"""Which nodes train together: one table of situations, then random faults over ranks that obey."""

import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from daisychain.run.generations import (
    GIVE_UP_AFTER,
    LETTING_GO_S,
    LETTING_GO_STEPS,
    PATIENCE_S,
    RETRY_S,
    STEADY_S,
    Action,
    Boundary,
    Break,
    Fail,
    Form,
    Generations,
    Hung,
    Leave,
    Start,
)


def wait(subject: Generations, seat: int, generation: int = 0, completed: int = 0, why: str = "") -> None:
    subject.waiting(seat, port=7000 + seat, generation=generation, completed=completed, why=why)


def running(size: int) -> Generations:
    """All seats train in generation 1."""
    subject = Generations(size)
    assert subject.decide(0) == [Start(seat) for seat in range(size)]
    for seat in range(size):
        wait(subject, seat)
    assert subject.decide(0) == [Form(tuple(range(size)), 1, 0)]
    for seat in range(size):
        subject.joined(seat, 1)
    assert subject.decide(0) == []
    return subject


# --- the launch --------------------------------------------------------------------------------------------------


def test_the_first_generation_forms_once_all_have_loaded() -> None:
    subject = Generations(3)
    assert subject.decide(0) == [Start(0), Start(1), Start(2)]
    for seat in (2, 0):
        wait(subject, seat)
        assert subject.decide(1) == []
    wait(subject, 1)
    assert subject.decide(2) == [Form((0, 1, 2), 1, 0)]
    assert subject.decide(2) == []


def test_a_slow_loader_is_waited_for_until_patience_ends_and_is_let_in_later() -> None:
    subject = Generations(2)
    subject.decide(0)
    wait(subject, 0)
    assert subject.decide(10) == []
    assert subject.decide(10 + PATIENCE_S) == []
    assert subject.decide(10.1 + PATIENCE_S) == [Form((0,), 1, 0)]
    wait(subject, 1)
    assert subject.decide(80) == [Boundary((0,), 1)]
    wait(subject, 0, generation=1, completed=4)
    assert subject.decide(81) == [Form((0, 1), 2, 4)]


def test_patience_is_for_ranks_that_load_and_not_for_lost_ones() -> None:
    subject = Generations(2)
    subject.decide(0)
    wait(subject, 0)
    assert subject.decide(1) == []
    subject.lost(1, 2)
    assert subject.decide(2) == [Form((0,), 1, 0)]


def test_a_resumed_run_begins_with_the_newest_state() -> None:
    subject = Generations(2)
    subject.decide(0)
    wait(subject, 0, completed=3)
    wait(subject, 1, completed=8)
    assert subject.decide(0) == [Form((0, 1), 1, 8)]


# --- a rank is lost -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_killed_rank_is_left_behind_and_started_again(victim: int) -> None:
    subject = running(3)
    others = tuple(seat for seat in range(3) if seat != victim)
    subject.exited(victim, 5)
    assert subject.decide(5) == [Start(victim), Break(others, 1)]
    wait(subject, others[0], 1, 9, "connection reset")
    assert subject.decide(5) == []
    wait(subject, others[1], 1, 10, "connection reset")
    assert subject.decide(5) == [Form(others, 2, 10)]
    wait(subject, victim, completed=0)
    assert subject.decide(9) == [Boundary(others, 2)]
    for seat in others:
        wait(subject, seat, 2, 20)
    assert subject.decide(9) == [Form((0, 1, 2), 3, 20)]


def test_peers_that_notice_a_loss_by_themselves_are_not_told_again() -> None:
    subject = running(3)
    wait(subject, 0, 1, 4, "connection reset")
    assert subject.decide(1) == [Break((1, 2), 1)]
    wait(subject, 1, 1, 4, "connection reset")
    assert subject.decide(1) == []
    subject.exited(2, 1)
    assert subject.decide(1) == [Start(2), Form((0, 1), 2, 4)]


def test_a_rank_that_dies_again_and_again_stays_out_longer_each_time() -> None:
    subject = running(2)
    now = 100.0
    for out_s in (*RETRY_S, RETRY_S[-1]):
        subject.exited(1, now)
        for seat in subject.members:
            if seat != 1:
                subject.joined(seat, subject.generation)
                wait(subject, seat, subject.generation, 1, "reset")
        assert (Start(1) in subject.decide(now)) is (out_s == 0)
        if out_s:
            assert Start(1) not in subject.decide(now + out_s - 0.01)
            assert Start(1) in subject.decide(now + out_s)
        now += 1000


def test_deaths_count_in_a_row_and_a_steady_rank_may_die_again() -> None:
    subject = running(2)
    now = 100.0
    for lasted_s, gone in ((STEADY_S, False), (STEADY_S, False), (0, False), (STEADY_S, False), (0, False), (0, True)):
        place = subject.seats[1]
        place.standing, place.since_s = "in", now - lasted_s
        subject.exited(1, now, "killed", hopeless=False)
        assert bool(place.given_up) is gone, (lasted_s, place.deaths)
        now += 1


def test_the_last_one_does_not_wait_for_its_turn() -> None:
    subject = running(2)
    for seat in (0, 1):
        subject.seats[seat].losses = 5
        subject.exited(seat, 10, "killed", hopeless=False)
    starts = [action for action in subject.decide(10) if isinstance(action, Start)]
    assert starts == [Start(0)]
    # the other one has somebody to wait for now
    assert subject.decide(10) == []
    wait(subject, 0, 0, 0)
    assert subject.decide(10) == [Form((0,), 2, 0)]


def test_a_rank_that_no_try_would_help_is_not_started_again() -> None:
    subject = running(2)
    subject.exited(1, 1, "an illegal instruction")
    assert subject.decide(1) == [Break((0,), 1)]
    wait(subject, 0, 1, 2, "reset")
    assert subject.decide(1) == [Form((0,), 2, 2)]
    assert subject.decide(10_000) == []


def test_when_nobody_is_left_the_run_fails() -> None:
    subject = running(2)
    subject.exited(1, 1, "broken")
    subject.decide(1)
    subject.exited(0, 1, "broken too")
    assert subject.decide(1) == [Fail("no node is left that could go on")]


def test_formations_that_never_come_about_end_the_run_with_their_reason() -> None:
    subject = running(2)
    for seat in (0, 1):
        wait(subject, seat, 1, 5)
    for number in range(2, 2 + GIVE_UP_AFTER):
        assert subject.decide(number) == [Form((0, 1), number, 5)]
        for seat in (0, 1):
            wait(subject, seat, number, 5, "no route to host")
    assert subject.decide(9) == [Fail("no route to host")]


def test_a_formation_that_fails_because_a_rank_was_lost_does_not_count() -> None:
    subject = running(3)
    for number in range(2, 2 + 2 * GIVE_UP_AFTER):
        for seat in (1, 0, 2):
            wait(subject, seat, number - 1, 5, "reset by peer")
        assert Form((0, 1, 2), number, 5) in subject.decide(1000 * number)
        # the others may notice before or after the head hears of it
        if number % 2:
            subject.exited(2, 1000 * number)
            wait(subject, 0, number, 5, "reset by peer")
        else:
            wait(subject, 0, number, 5, "reset by peer")
            subject.exited(2, 1000 * number)
        assert Fail not in map(type, subject.decide(1000 * number + 999))


def with_a_newcomer_nobody_can_reach() -> Generations:
    subject = running(2)
    subject.add()
    assert subject.decide(1) == [Start(2)]
    wait(subject, 2)
    assert subject.decide(1) == [Boundary((0, 1), 1)]
    for seat in (0, 1):
        wait(subject, seat, 1, 5)
    for number in range(2, 2 + GIVE_UP_AFTER):
        assert subject.decide(number) == [Form((0, 1, 2), number, 5)]
        for seat in range(3):
            wait(subject, seat, number, 5, "no route to host")
    assert subject.decide(9) == [Form((0, 1), 2 + GIVE_UP_AFTER, 5)]
    return subject


def test_a_newcomer_that_nobody_can_reach_is_left_out_instead_of_ending_the_run() -> None:
    subject = with_a_newcomer_nobody_can_reach()
    for seat in (0, 1):
        subject.joined(seat, subject.generation)
    assert subject.decide(9999) == []
    assert subject.seats[2].given_up == "no route to host"
    for seat in (0, 1):
        subject.done(seat)
    assert subject.decide(9999) == [Leave((0, 1, 2))]


def test_who_is_left_out_keeps_no_run_alive() -> None:
    subject = with_a_newcomer_nobody_can_reach()
    for seat in (0, 1):
        subject.exited(seat, 10, "broken")
    assert [type(action) for action in subject.decide(10)] == [Fail]


def test_a_formation_that_comes_about_forgives_earlier_ones() -> None:
    subject = running(2)
    for number in range(2, 12):
        for seat in (0, 1):
            wait(subject, seat, number - 1, 5, "no route to host")
        assert subject.decide(number) == [Form((0, 1), number, 5)]
        if number % GIVE_UP_AFTER == 0:
            subject.joined(0, number)
            subject.joined(1, number)


# --- frozen, and out of reach -------------------------------------------------------------------------------------


def test_a_frozen_rank_is_left_behind_and_comes_back_once_it_saw_what_it_missed() -> None:
    subject = running(3)
    subject.frozen(2, 5)
    assert subject.decide(5) == [Break((0, 1, 2), 1)]
    for seat in (0, 1):
        wait(subject, seat, 1, 7, "cut")
    assert subject.decide(5) == [
        Form((0, 1), 2, 7),
    ]
    subject.thawed(2)
    assert Form not in map(type, subject.decide(6))
    wait(subject, 2, 1, 7, "cut")
    assert subject.decide(6) == [Boundary((0, 1), 2)]


def test_a_rank_that_froze_while_it_waited_says_nothing_and_is_ready_when_it_thaws() -> None:
    subject = running(2)
    subject.paused = True
    assert subject.decide(1) == [Boundary((0, 1), 1)]
    for seat in (0, 1):
        wait(subject, seat, 1, 3)
    subject.frozen(1, 2)
    subject.decide(2)
    subject.thawed(1)
    subject.paused = False
    assert subject.decide(3) == [Form((0, 1), 2, 3)]


def test_silence_while_torch_is_loaded_means_nothing() -> None:
    subject = Generations(2)
    subject.decide(0)
    subject.frozen(1, 5)
    subject.thawed(1)
    for seat in (0, 1):
        wait(subject, seat)
    assert subject.decide(6) == [Form((0, 1), 1, 0)]


def test_a_rank_that_does_not_let_go_is_left_behind_and_let_in_once_it_has() -> None:
    subject = running(3)
    subject.step_s = LETTING_GO_S / 2
    subject.exited(2, 10, "killed")
    assert subject.decide(10) == [Break((0, 1), 1)]
    wait(subject, 0, 1, 5, "reset")
    until = 10 + LETTING_GO_STEPS * subject.step_s
    assert subject.decide(until) == [], "it may still compute"
    assert subject.decide(until + 1) == [Hung(1), Form((0,), 2, 5)]
    subject.joined(0, 2)
    wait(subject, 1, 1, 4, "reset")
    assert subject.decide(until + 2) == [Boundary((0,), 2)]
    wait(subject, 0, 2, 7)
    assert subject.decide(until + 3) == [Form((0, 1), 3, 7)]


def test_a_frozen_rank_that_is_killed_is_started_again() -> None:
    subject = running(2)
    subject.frozen(1, 5)
    subject.decide(5)
    subject.exited(1, 6)
    assert Start(1) not in subject.decide(6)
    assert Start(1) in subject.decide(6 + RETRY_S[1])


def test_a_node_out_of_reach_is_left_behind_and_its_living_rank_is_let_in_again() -> None:
    subject = running(3)
    subject.lost(1, 5)
    subject.lost(1, 5)
    assert subject.decide(5) == [Break((0, 2), 1)]
    for seat in (0, 2):
        wait(subject, seat, 1, 7, "cut")
    assert subject.decide(5) == [Form((0, 2), 2, 7)]
    subject.back(1, alive=True)
    assert subject.decide(50) == [Break((1,), 2)]
    wait(subject, 1, 1, 6, "cut")
    assert subject.decide(50) == [Boundary((0, 2), 2)]
    for seat in (0, 2):
        wait(subject, seat, 2, 9)
    assert subject.decide(51) == [Form((0, 1, 2), 3, 9)]


def test_a_node_that_is_back_without_its_rank_gets_a_new_one() -> None:
    subject = running(2)
    subject.lost(1, 5)
    subject.decide(5)
    subject.back(1, alive=False)
    assert subject.decide(6) == [Start(1)]


def test_a_node_that_is_back_before_the_others_let_go_is_told_once() -> None:
    subject = running(3)
    subject.lost(1, 5)
    assert subject.decide(5) == [Break((0, 2), 1)]
    subject.back(1, alive=True)
    assert subject.decide(5) == [Break((1,), 1)]
    assert subject.decide(5) == []
    for seat in range(3):
        wait(subject, seat, 1, 7, "cut")
    assert subject.decide(6) == [Form((0, 1, 2), 2, 7)]


def test_a_rank_that_is_ready_too_soon_after_its_loss_waits_without_disturbing() -> None:
    subject = running(2)
    for _ in range(2):
        subject.lost(1, 10)
        subject.back(1, alive=True)
    assert Break((0, 1), 1) in subject.decide(10)
    for seat in (0, 1):
        wait(subject, seat, 1, 7, "cut")
    assert subject.decide(10) == [Form((0,), 2, 7)]
    assert subject.decide(10 + RETRY_S[1] - 0.1) == []
    assert subject.decide(10 + RETRY_S[1]) == [Boundary((0,), 2)]


# --- joining, lending, pausing ------------------------------------------------------------------------------------


def test_a_node_that_joins_late_is_started_and_let_in_at_a_boundary() -> None:
    subject = running(1)
    assert subject.add() == 1
    assert subject.decide(1) == [Start(1)]
    wait(subject, 1)
    assert subject.decide(2) == [Boundary((0,), 1)]
    wait(subject, 0, 1, 5)
    assert subject.decide(2) == [Form((0, 1), 2, 5)]


def test_a_node_that_is_left_out_stays_out_and_the_others_go_on_at_once() -> None:
    subject = running(3)
    subject.leave_out(2, "faster without it")
    assert subject.decide(1) == [Break((0, 1, 2), 1)]
    subject.exited(2, 1)
    for seat in (0, 1):
        wait(subject, seat, 1, 0, "severed")
    assert subject.decide(1) == [Form((0, 1), 2, 0)]
    subject.back(2, alive=False)
    assert subject.decide(1000) == []


def test_a_lent_node_leaves_at_a_boundary_and_comes_back_at_one() -> None:
    subject = running(2)
    subject.lend(1, True)
    assert subject.decide(1) == [Boundary((0, 1), 1)]
    for seat in (0, 1):
        wait(subject, seat, 1, 5)
    assert subject.decide(1) == [Form((0,), 2, 5)]
    assert subject.decide(500) == []
    subject.lend(1, False)
    assert subject.decide(501) == [Boundary((0,), 2)]


def test_a_lent_node_whose_rank_died_is_not_started_until_it_is_given_back() -> None:
    subject = running(2)
    subject.lend(1, True)
    subject.exited(1, 1)
    assert Start(1) not in subject.decide(10)
    subject.lend(1, False)
    assert Start(1) in subject.decide(10)


def test_a_pause_ends_the_generation_and_resuming_forms_the_next() -> None:
    subject = running(2)
    subject.paused = True
    assert subject.decide(1) == [Boundary((0, 1), 1)]
    assert subject.decide(2) == []
    for seat in (0, 1):
        wait(subject, seat, 1, 5)
    assert subject.decide(3) == []
    subject.paused = False
    assert subject.decide(4) == [Form((0, 1), 2, 5)]


def test_while_all_nodes_are_lent_the_run_waits() -> None:
    subject = running(1)
    subject.lend(0, True)
    assert subject.decide(1) == [Boundary((0,), 1)]
    wait(subject, 0, 1, 5)
    assert subject.decide(9999) == []
    subject.lend(0, False)
    assert subject.decide(9999) == [Form((0,), 2, 5)]


# --- the end ------------------------------------------------------------------------------------------------------


def test_ranks_leave_together_once_all_are_done() -> None:
    subject = running(2)
    subject.done(0)
    assert subject.decide(1) == []
    assert not subject.finished
    subject.done(1)
    assert subject.decide(1) == [Leave((0, 1))]
    assert subject.finished
    subject.exited(0, 2)
    assert subject.decide(2) == []


def test_nobody_is_let_in_any_more_once_one_is_done() -> None:
    subject = running(3)
    subject.exited(2, 1)
    subject.decide(1)
    for seat in (0, 1):
        wait(subject, seat, 1, 9, "reset")
    assert subject.decide(1) == [Form((0, 1), 2, 9)]
    subject.done(1)
    wait(subject, 2)
    assert subject.decide(2) == []
    subject.done(0)
    assert subject.decide(3) == [Leave((0, 1, 2))]


def test_those_who_are_done_help_one_that_is_behind() -> None:
    subject = running(3)
    subject.done(1)
    subject.exited(2, 1, "broken")
    assert subject.decide(1) == [Break((0, 1), 1)]
    for seat, completed in ((0, 8), (1, 9)):
        wait(subject, seat, 1, completed, "reset")
    assert subject.decide(1) == [Form((0, 1), 2, 9)]
    subject.done(0)
    assert subject.decide(2) == [Leave((0, 1))]


def test_the_results_of_a_lost_first_rank_are_made_again_by_its_next_process() -> None:
    subject = running(2)
    subject.done(1)
    subject.exited(0, 1)
    assert subject.decide(1) == [Start(0), Break((1,), 1)]
    wait(subject, 1, 1, 9, "reset")
    assert subject.decide(1) == []
    wait(subject, 0)
    assert subject.decide(2) == [Form((0, 1), 2, 9)]
    subject.done(0)
    assert subject.decide(3) == [Leave((0, 1))]


def test_a_rank_with_work_left_goes_before_those_who_are_done_for_results_come_from_the_first() -> None:
    subject = running(3)
    subject.done(1)
    subject.exited(0, 1, "broken")
    assert subject.decide(1) == [Break((1, 2), 1)]
    wait(subject, 1, 1, 9, "reset")
    wait(subject, 2, 1, 8, "reset")
    assert subject.decide(1) == [Form((2, 1), 2, 9)]
    subject.done(2)
    assert subject.decide(2) == [Leave((1, 2))]


def test_results_count_whichever_generation_they_come_from() -> None:
    subject = running(2)
    subject.frozen(0, 1)
    subject.decide(1)
    wait(subject, 1, 1, 8, "cut")
    assert subject.decide(1) == [Form((1,), 2, 8)]
    subject.done(0)
    subject.lost(1, 2)
    assert subject.decide(2) == [Leave(())]


def test_with_results_a_node_that_is_gone_is_not_waited_for() -> None:
    subject = running(2)
    subject.done(0)
    subject.lost(1, 1)
    assert subject.decide(1) == [Leave((0,))]


def test_a_script_that_never_trains_ends_once_all_have_ended() -> None:
    subject = Generations(2)
    subject.decide(0)
    subject.done(0)
    subject.exited(0, 1)
    assert subject.decide(1) == []
    subject.done(1)
    subject.exited(1, 2)
    assert subject.decide(2) == [Leave(())]
    assert subject.finished


# --- random faults ------------------------------------------------------------------------------------------------

STEPS = 6


class FakeRank:
    """A process that does what train/crew.py does, a little at each `run`."""

    def __init__(self, world: "World", seat: int) -> None:
        self.world, self.seat = world, seat
        self.state = "loading"
        self.alive, self.frozen, self.finished = True, False, False
        self.pipe: list[Action] = []
        self.form = Form((), 0, 0)
        self.pending = self.form
        self.broken = self.boundary = -1
        self.leaves = False
        self.completed = 0
        self.waits: dict[str, Any] = {}
        """What its agent knows it to have said last, until the agent passes a formation on."""

    @property
    def peers(self) -> "list[FakeRank]":
        return [self.world.ranks[seat] for seat in self.form.seats if seat != self.seat]

    def run(self) -> None:
        if not self.alive or self.frozen:
            return
        for order in self.pipe:
            self._obey(order)
        self.pipe.clear()
        match self.state:
            case "loading":
                self._wait("")
            case "waiting" if self.leaves:
                self.exit()
            case "waiting" if self.pending.generation > self.form.generation:
                self.form = self.pending
                self.state = "forming"
            case "forming" | "in" if self.broken >= self.form.generation or self._misses_a_peer:
                self._wait("cut")
            case "forming" if all(self._is_with(peer) for peer in self.peers):
                self.completed = max(r.completed for r in [self, *self.peers])
                self.state = "in"
                self.world.say(self.seat, "joined", generation=self.form.generation)
            case "in" if self.completed == STEPS:
                self.state = "lingering"
                if not self.finished:
                    self.finished = True
                    self.world.say(self.seat, "done")
            case "lingering" if self.leaves:
                self.exit()
            case "lingering" if self.broken >= self.form.generation:
                self._wait("cut")

    def _obey(self, order: Action) -> None:
        match order:
            case Form():
                self.pending = order
            case Break(_, generation):
                self.broken = max(self.broken, generation)
            case Boundary(_, generation):
                self.boundary = max(self.boundary, generation)
            case Leave():
                self.leaves = True

    def _is_with(self, peer: "FakeRank") -> bool:
        return peer.alive and not peer.frozen and self.world.connected(self.seat, peer.seat) and self._in_mine(peer)

    def _in_mine(self, peer: "FakeRank") -> bool:
        return peer.form.generation == self.form.generation and peer.state in ("forming", "in", "lingering")

    @property
    def _misses_a_peer(self) -> bool:
        """Whether a peer's end of the connection is closed; out of reach or not yet there, nothing is known."""
        gone = (p for p in self.peers if self.world.connected(self.seat, p.seat) and not self._in_mine(p))
        early = self.form.generation
        return any(not p.alive or p.form.generation >= early or p.state == "loading" for p in gone)

    def _wait(self, why: str) -> None:
        self.state = "waiting"
        self.waits = {"port": 1, "generation": self.form.generation, "completed": self.completed, "why": why}
        self.world.say(self.seat, "waiting")

    def step(self) -> None:
        """With all peers: one step, and its boundary if one of them was asked for it."""
        everyone = [self, *self.peers]
        if self.state != "in" or self.frozen or not self.alive or self.completed == STEPS:
            return
        if not all(self._is_with(p) and p.state == "in" and p.completed == self.completed for p in self.peers):
            return
        for rank in everyone:
            rank.completed += 1
        if any(rank.boundary >= self.form.generation for rank in everyone):
            for rank in everyone:
                rank._wait("")

    def exit(self) -> None:
        if self.alive:
            self.alive, self.state = False, "dead"
            self.world.say(self.seat, "exit")


class World:
    """Nodes, links that drop what is on them when they are cut, and one head (seat 0) that performs all actions."""

    def __init__(self, size: int, chance: random.Random) -> None:
        self.chance, self.now = chance, 0.0
        self.subject = Generations(size)
        self.up = [True] * size
        self.known_lost: set[int] = set()
        self.known_silent: set[int] = set()
        self.said: list[list[tuple[str, dict[str, Any]]]] = [[] for _ in range(size)]
        self.ordered: list[list[Action]] = [[] for _ in range(size)]
        self.ranks: list[FakeRank] = []
        for seat in range(size):
            self.ranks.append(FakeRank(self, seat))
            self.ranks[seat].alive = False
        self.asked: set[tuple[Any, ...]] = set()
        self.failed = ""
        self.act()

    def connected(self, one: int, other: int) -> bool:
        return self.up[one] and self.up[other]

    def say(self, seat: int, kind: str, **facts: Any) -> None:
        facts = dict(self.ranks[seat].waits) if kind == "waiting" else facts
        self.said[seat].append((kind, facts))

    # --- what the head does -------------------------------------------------------------------------------

    def act(self) -> None:
        actions = self.subject.decide(self.now)
        for action in actions:
            self._check(action)
            match action:
                case Start(seat):
                    self.ordered[seat].append(action)
                case Fail(why):
                    self.failed = why
                case Break(seats) | Boundary(seats) | Form(seats) | Leave(seats):
                    for seat in seats:
                        self.ordered[seat].append(action)
        if not self.failed:
            assert self.subject.decide(self.now) == []

    def _check(self, action: Action) -> None:
        seats = self.subject.seats
        match action:
            case Start(seat):
                assert seats[seat].reachable
                assert not any(isinstance(order, Start) for order in self.ordered[seat])
                assert not (self.up[seat] and self.ranks[seat].alive)
            case Form(chosen, generation):
                assert all(seats[seat].reachable and not seats[seat].lent for seat in chosen)
                assert all(self.ranks[s].state in ("waiting", "dead") for s in chosen if self.up[s])
                assert len(set(chosen)) == len(chosen) > 0
                self._once("form", generation)
            case Break(chosen, generation):
                for seat in chosen:
                    assert seats[seat].reachable
                    self._once("break", seat, generation)
            case Boundary(chosen, generation):
                for seat in chosen:
                    self._once("boundary", seat, generation)

    def _once(self, *what: Any) -> None:
        assert what not in self.asked
        self.asked.add(what)

    def _hear(self, seat: int) -> None:
        kind, facts = self.said[seat].pop(0)
        match kind:
            case "waiting":
                self.subject.waiting(seat, **facts)
            case "joined":
                self.subject.joined(seat, facts["generation"])
            case "done":
                self.subject.done(seat)
            case "exit":
                self.subject.exited(seat, self.now)
            case "silent":
                self.subject.frozen(seat, self.now)
            case "heard":
                self.subject.thawed(seat)
        self.act()

    def _deliver(self, seat: int) -> None:
        order = self.ordered[seat].pop(0)
        if not isinstance(order, Start):
            self.ranks[seat].pipe.append(order)
            if isinstance(order, Form):
                self.ranks[seat].waits = {}
        elif self.up[seat]:
            self.ranks[seat] = FakeRank(self, seat)
            self.known_silent.discard(seat)

    # --- what happens to nodes ------------------------------------------------------------------------------

    def kill(self, seat: int) -> None:
        peers = self.ranks[seat].peers
        if self.ranks[seat].state == "in" and self.chance.random() < 0.5:
            # the last message of a step has reached some of them
            for rank in peers:
                if rank.state == "in" and rank.alive and not rank.frozen and rank.completed < STEPS:
                    rank.completed += self.chance.random() < 0.5
        self.ranks[seat].exit()

    def cut(self, seat: int) -> None:
        if seat and self.up[seat]:
            self.up[seat] = False
            rank = self.ranks[seat]
            if rank.alive:
                rank.pipe.append(Break((seat,), max(rank.form.generation, rank.pending.generation)))
            self.ordered[seat].clear()

    def miss(self, seat: int) -> None:
        """The head notices that a link is cut."""
        if not self.up[seat] and seat not in self.known_lost:
            self.known_lost.add(seat)
            self.subject.lost(seat, self.now)
            self.act()

    def mend(self, seat: int) -> None:
        if self.up[seat]:
            return
        self.miss(seat)
        self.up[seat] = True
        self.known_lost.discard(seat)
        self.asked = {what for what in self.asked if what[:2] != ("break", seat)}
        rank = self.ranks[seat]
        self.ordered[seat].clear()
        self.said[seat].clear()
        self.subject.back(seat, rank.alive)
        if rank.alive and rank.finished:
            self.say(seat, "done")
        if rank.alive and rank.waits:
            self.say(seat, "waiting")
        self.act()

    def watch(self, seat: int) -> None:
        """A node's agent notices that its rank is frozen, or runs again."""
        rank = self.ranks[seat]
        if rank.alive and rank.state != "loading" and rank.frozen != (seat in self.known_silent):
            self.known_silent ^= {seat}
            self.say(seat, "silent" if rank.frozen else "heard")

    def fault(self) -> None:
        seat = self.chance.randrange(len(self.up))
        match self.chance.choice(("kill", "freeze", "freeze", "thaw", "cut", "mend", "lend", "back", "pause")):
            case "kill":
                self.kill(seat)
            case "freeze":
                self.ranks[seat].frozen = self.ranks[seat].alive and self.ranks[seat].state != "loading"
            case "thaw":
                self.ranks[seat].frozen = False
            case "cut":
                self.cut(seat)
            case "mend":
                self.mend(seat)
            case "lend":
                self.subject.lend(seat, True)
            case "back":
                self.subject.lend(seat, False)
            case "pause":
                self.subject.paused = not self.subject.paused
        self.act()

    def heal(self) -> None:
        self.subject.paused = False
        for seat in range(len(self.up)):
            self.ranks[seat].frozen = False
            self.subject.lend(seat, False)
            self.mend(seat)

    def move(self) -> None:
        """Something goes on somewhere."""
        seat = self.chance.randrange(len(self.up))
        match self.chance.choice(("run", "run", "step", "hear", "hear", "deliver", "deliver", "watch", "miss", "time")):
            case "run":
                self.ranks[seat].run()
            case "step":
                self.ranks[seat].step()
            case "hear" if self.up[seat] and self.said[seat]:
                self._hear(seat)
            case "deliver" if self.up[seat] and self.ordered[seat]:
                self._deliver(seat)
            case "watch":
                self.watch(seat)
            case "miss":
                self.miss(seat)
            case "time":
                self.now += self.chance.choice((0.1, 1.0, 10.0))
                self.act()

    @property
    def over(self) -> bool:
        return bool(self.failed) or self.subject.finished


@settings(deadline=None, max_examples=300)
@example(size=4, faults=34, seed=1)
@given(st.integers(1, 4), st.integers(0, 40), st.integers(0, 2**32))
def test_once_faults_end_every_run_finishes(size: int, faults: int, seed: int) -> None:
    world = World(size, random.Random(seed))
    for _ in range(faults):
        for _ in range(world.chance.randrange(40)):
            if world.over:
                break
            world.move()
        if not world.over:
            world.fault()
    if not world.over:
        world.heal()
    for _ in range(20_000):
        if world.over:
            break
        world.move()
    assert world.subject.finished, world.failed or [vars(place) for place in world.subject.seats]
    assert any(rank.finished for rank in world.ranks)
