"""Forming generations and coming level: crews in threads of this process, over real gloo."""

import json
import os
import threading
import time

import pytest
import torch

from daisychain.errors import LinkError, ScriptError
from daisychain.train.crew import FRESH, Crew, Standing
from daisychain.train.orders import Orders
from daisychain.train.task import Task

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]


class FakeCourse:
    """So many steps done, and a state that says which rank it came from."""

    def __init__(self, completed=0, owner="", **facts):
        self.completed, self.owner, self.facts = completed, owner, facts
        self.recent, self.saved, self.restored = [], 0, 0

    def standing(self):
        facts = {"per_sample_ns": 0, "lookahead": 0, "samples": 43, "batch": 10, "model": (1, 2, 3, -4)}
        return Standing(completed=self.completed, **(facts | self.facts))

    def capture(self):
        return {"completed": max(0, self.completed), "owner": self.owner, "weights": torch.arange(5.0)}

    def restore(self, captured):
        assert torch.equal(captured["weights"], torch.arange(5.0))
        self.completed, self.owner = captured["completed"], captured["owner"]
        self.restored += 1

    def save(self):
        self.saved += 1


EVERYONE = []


class Member:
    """One rank: its crew, its orders, and what it tells."""

    def __init__(self, course=None, **task):
        self.course, self.reports = course or FakeCourse(), []
        self.orders = Orders()
        self.crew = Crew(Task(launcher="agent", **task), self.orders, self.reports.append)
        EVERYONE.append(self)

    def order(self, **order):
        self.orders.obey([json.dumps(order).encode()], lambda: None)

    def muster(self):
        return self.crew.muster(self.course)

    def waiting(self, count=1):
        end = time.monotonic() + 20
        while len(found := [r for r in self.reports if r["kind"] == "waiting"]) < count:
            assert time.monotonic() < end, self.reports
            time.sleep(0.005)
        return found[-1]

    @property
    def kinds(self):
        return [report["kind"] for report in self.reports]


class Together:
    """Members that muster at once, each in a thread."""

    def __init__(self, *members):
        self.members, self.found = members, [None] * len(members)
        self._threads = [threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(len(members))]
        for thread in self._threads:
            thread.start()

    def _run(self, index):
        try:
            self.found[index] = self.members[index].muster()
        except Exception as error:
            self.found[index] = error

    def form(self, generation, members=None):
        members = members or self.members
        port = members[0].reports[-1]["port"]
        names = [f"n{rank}" for rank in range(len(members))]
        for rank, member in enumerate(members):
            formation = {"generation": generation, "rank": rank, "names": names, "address": "127.0.0.1", "port": port}
            member.order(kind="form", formation=formation)

    def wait(self):
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive(), [member.reports for member in self.members]
        return self.found


@pytest.fixture(autouse=True)
def on_loopback(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    yield
    while EVERYONE:
        crew = EVERYONE.pop().crew
        crew.close()
        # a process would end now
        if crew._listener._socket is not None:
            crew._listener._socket.close()


def formed(*members, generation=1, waited=1):
    together = Together(*members)
    for member in members:
        member.waiting(waited)
    together.form(generation)
    return together.wait()


def test_a_rank_of_one_forms_alone():
    member = Member(FakeCourse(3))
    assert formed(member) == [[member.course.standing()]]
    assert member.kinds == ["waiting", "joined"]
    assert {name: member.reports[0][name] for name in ("generation", "completed", "why")} == {
        "generation": 0, "completed": 3, "why": ""
    }  # fmt: skip
    assert (member.crew.formation.generation, member.crew.exchange.alone) == (1, True)
    assert not member.crew.called
    member.order(kind="boundary", generation=1)
    assert member.crew.called


def test_all_hear_everyones_standing_and_the_newest_state_goes_to_whoever_is_behind():
    members = [Member(FakeCourse(4, "a", per_sample_ns=7)), Member(FakeCourse(5, "b")), Member(FakeCourse(FRESH, "c"))]
    found = formed(*members)
    assert found[0] == found[1] == found[2]
    assert [(standing.completed, standing.per_sample_ns) for standing in found[0]] == [(4, 7), (5, 0), (FRESH, 0)]
    assert found[0][0].model == (1, 2, 3, -4)
    assert [(m.course.completed, m.course.owner, m.course.restored) for m in members] == [
        (5, "b", 1), (5, "b", 0), (5, "b", 1)
    ]  # fmt: skip
    assert [member.reports[-1]["completed"] for member in members] == [5, 5, 5]
    for member in members:
        member.crew.close()


def test_ranks_that_begin_alike_are_sent_nothing():
    members = [Member(FakeCourse(FRESH)) for _ in range(3)]
    found = formed(*members)
    assert [len(everyone) for everyone in found] == [3, 3, 3]
    assert [member.course.restored for member in members] == [0, 0, 0]


def test_at_the_very_start_all_take_the_first_ranks_state():
    members = [Member(FakeCourse(FRESH, name)) for name in "abc"]
    formed(*members)
    assert [member.course.owner for member in members] == ["a", "a", "a"]
    assert [member.course.restored for member in members] == [0, 1, 1]


@pytest.mark.parametrize(
    ("fact", "words"),
    [
        ({"model": (1, 2, 3, 4)}, "the model on n1 differs from n0's"),
        ({"samples": 44}, r"the number of samples on n1 differs from n0's \(44 and 43\)"),
        ({"batch": 9}, r"the batch size on n1 differs from n0's \(9 and 10\)"),
    ],
)
def test_ranks_that_differ_are_told_alike_which_and_in_what(fact, words):
    found = formed(Member(), Member(FakeCourse(**fact)))
    assert [type(error) for error in found] == [ScriptError, ScriptError]
    assert found[0].what == found[1].what
    with pytest.raises(ScriptError, match=words):
        raise found[0]
    assert found[0].remedy


def test_a_boundary_is_wanted_by_whoever_was_asked_and_does_not_call_a_rank_among_others():
    members = [Member(), Member()]
    formed(*members)
    members[0].order(kind="boundary", generation=1)
    assert [member.crew.wants_boundary for member in members] == [True, False]
    assert [member.crew.called for member in members] == [False, False]


def test_a_broken_generation_wakes_who_waits_for_a_lost_rank_and_the_next_forms():
    members = [Member(FakeCourse(2, "a")), Member(FakeCourse(2, "b"))]
    formed(*members)
    # the first waits for the second, which never comes
    got = []
    waiter = threading.Thread(target=lambda: got.append(members[0].crew.exchange.total(torch.ones(3))), daemon=True)
    waiter.start()
    waiter.join(0.1)
    assert waiter.is_alive()
    for member in members:
        member.order(kind="break", generation=1)
    waiter.join(10)
    assert not waiter.is_alive()
    assert got[0].tolist() == [1.0, 1.0, 1.0]
    assert members[0].crew.exchange.broken
    assert all(member.crew.called for member in members)
    formed(*members, generation=2, waited=2)
    assert [member.crew.formation.generation for member in members] == [2, 2]
    assert [bool(member.waiting(2)["why"]) for member in members] == [True, False]
    for member in members:
        assert (member.crew.exchange.broken, member.crew.called) == ("", False)


def test_a_generation_that_broke_before_it_was_seen_is_said_and_the_next_forms():
    member = Member()
    together = Together(member)
    member.waiting()
    formation = {"generation": 1, "rank": 0, "names": ["a", "b"], "address": "127.0.0.1", "port": 1}
    lines = [{"kind": "form", "formation": formation}, {"kind": "break", "generation": 1}]
    with member.orders._news:
        for line in lines:
            member.orders._take(_parsed(line))
        member.orders._news.notify_all()
    said = member.waiting(2)
    assert said["generation"] == 1
    assert said["why"]
    together.form(2)
    together.wait()
    assert member.crew.formation.generation == 2


def _parsed(line):
    import msgspec

    from daisychain.train.orders import Break, Form

    return msgspec.json.decode(json.dumps(line), type=Form | Break)


def test_a_rank_that_is_lost_while_all_connect_does_not_hold_up_the_others():
    members = [Member(), Member()]
    together = Together(members[0])
    members[0].waiting()
    together.members = members
    members[1].reports.append({"port": 1})
    together.form(1)
    time.sleep(0.2)
    begun = time.monotonic()
    members[0].order(kind="break", generation=1)
    said = members[0].waiting(2)
    assert time.monotonic() - begun < 5
    assert said["generation"] == 1
    assert said["why"]
    together.form(2, members[:1])
    together.members = members[:1]
    together.wait()
    assert members[0].kinds[-1] == "joined"


class Ended(BaseException):
    """os._exit was called."""


@pytest.mark.parametrize(("kind", "saved"), [("save", 1), ("leave", 0)])
def test_without_a_next_generation_the_process_ends_and_saves_if_it_was_told_to(monkeypatch, kind, saved):
    def end(code):
        raise Ended(code)

    monkeypatch.setattr(os, "_exit", end)
    member = Member()
    member.order(kind=kind)
    with pytest.raises(Ended, match="0"):
        member.muster()
    assert member.course.saved == saved


def test_who_is_done_helps_those_behind_until_all_may_leave():
    done, behind = Member(FakeCourse(9, "done")), Member(FakeCourse(FRESH, "behind"))
    formed(done)
    lingering = threading.Thread(target=done.crew.linger, args=(done.course,), daemon=True)
    lingering.start()
    lingering.join(0.05)
    assert lingering.is_alive()
    done.order(kind="break", generation=1)
    done.waiting(2)
    together = Together(behind)
    behind.waiting()
    together.form(2, [behind, done])
    together.wait()
    assert (behind.course.completed, behind.course.owner) == (9, "done")
    done.order(kind="leave")
    lingering.join(10)
    assert not lingering.is_alive()


def test_who_never_was_in_a_generation_does_not_linger():
    member = Member()
    member.crew.linger(member.course)
    assert member.reports == []


def test_under_torchrun_a_lost_rank_ends_the_script(monkeypatch):
    reports = []
    crew = Crew(Task(launcher="torchrun"), Orders(), reports.append)
    crew.muster(FakeCourse())
    crew.exchange.fail(RuntimeError("Connection reset by peer"))
    assert crew.called
    with pytest.raises(LinkError, match="Connection reset by peer"):
        crew.muster(FakeCourse())


@pytest.mark.parametrize(("broken", "calls"), [(True, ["sever", "close"]), (False, ["close"])])
def test_a_broken_group_is_severed_before_it_is_dropped(broken, calls):
    """Dropping it waits, with Python's lock held, for exchanges that may never end by themselves."""
    member = Member()
    together = Together(member)
    member.waiting()
    together.form(1)
    together.wait()
    said = []

    class Recorder:
        backend = None

        def sever(self):
            said.append("sever")

        def close(self, *, has_ended=True):
            assert has_ended
            said.append("close")

    member.crew._group = Recorder()
    if broken:
        member.crew.exchange.fail(RuntimeError("Connection reset by peer"))
    again = Together(member)
    member.waiting(2)
    assert said == calls
    again.form(2)
    again.wait()
