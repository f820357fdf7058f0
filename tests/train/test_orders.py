"""Orders on a rank's stdin, and what its script's thread makes of them."""

import json
import threading

import pytest

from daisychain.train.orders import Orders
from daisychain.train.task import Formation


def line(**order):
    return json.dumps(order).encode() + b"\n"


def form(generation, **more):
    return line(kind="form", formation={"generation": generation, "names": ["a", "b"], "rank": 1, **more})


def obeyed(*lines):
    """Orders after these lines, and whether they ended the process."""
    orders, stops = Orders(), []
    orders.obey(lines, lambda: stops.append(True))
    assert stops == [True]
    return orders


def test_the_newest_formation_is_given_with_all_it_says():
    orders = obeyed(form(1), form(2, port=7, address="10.0.0.1", speeds=[[0.1, 0.2], [0.3, 0.4]]))
    assert orders.next_formation(0) == Formation(
        generation=2, rank=1, names=("a", "b"), port=7, address="10.0.0.1", speeds=((0.1, 0.2), (0.3, 0.4))
    )


def test_a_formation_that_broke_before_it_was_seen_is_given_all_the_same_for_the_chain_waits_to_hear_of_it():
    orders = obeyed(form(2), line(kind="break", generation=2))
    formation = orders.next_formation(1)
    assert formation is not None
    assert orders.broken(formation.generation)


def test_breaking_a_generation_breaks_those_before_it_and_none_after():
    orders = obeyed(line(kind="break", generation=3), line(kind="break", generation=2))
    assert [orders.broken(number) for number in (1, 2, 3, 4)] == [True, True, True, False]


def test_a_boundary_is_for_its_generation_and_saving_wants_one_of_any():
    orders = obeyed(line(kind="boundary", generation=3))
    assert [orders.wants_boundary(number) for number in (2, 3, 4)] == [True, True, False]
    assert obeyed(line(kind="save")).wants_boundary(99)


@pytest.mark.parametrize("kind", ["save", "leave"])
def test_who_is_to_end_waits_no_longer(kind):
    orders = obeyed(line(kind=kind))
    assert getattr(orders, kind)
    assert orders.next_formation(0) is None
    orders.wait_over(5)


def test_saving_goes_before_a_new_formation_and_leaving_does_not():
    assert obeyed(form(2), line(kind="save")).next_formation(1) is None
    assert obeyed(form(2), line(kind="leave")).next_formation(1) is not None


def test_the_generation_that_a_broken_one_severs_is_told_in_the_readers_thread():
    severed = []
    orders = Orders(severed.append)
    orders.obey([line(kind="break", generation=4), line(kind="boundary", generation=4)], lambda: severed.append("stop"))
    assert severed == [4, "stop"]


def test_nothing_after_a_stop_is_read():
    lines = iter([line(kind="stop"), form(1)])
    orders = Orders()
    orders.obey(lines, lambda: None)
    assert next(lines) == form(1)


@pytest.mark.parametrize(
    "noise",
    [b"\n", b"{}\n", b"no json\n", b"[1]\n", b'{"kind": "dance"}\n', b'{"kind": "break"}\n', b"\xff\xfe\n",
     b'{"kind": "form", "formation": {"generation": "x"}}\n', b'{"kind": "break", "generation": 1.5}\n'],
)  # fmt: skip
def test_what_is_no_order_is_passed_over(noise):
    orders = obeyed(noise, form(1), noise)
    assert orders.next_formation(0) is not None


def test_a_waiting_thread_wakes_with_each_order():
    orders = Orders()
    heard = []
    waiting = threading.Thread(target=lambda: heard.append(orders.next_formation(2)), daemon=True)
    waiting.start()
    orders.obey([form(1), form(2), line(kind="boundary", generation=1)], lambda: None)
    waiting.join(0.05)
    assert waiting.is_alive()
    orders.obey([form(3)], lambda: None)
    waiting.join(10)
    assert [formation.generation for formation in heard] == [3]


def test_beginning_waits_for_the_word_but_not_for_ever_nor_through_a_loss():
    orders = Orders()
    waiting = threading.Thread(target=lambda: orders.wait_go(1, 30), daemon=True)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    orders.obey([line(kind="go")], lambda: None)
    waiting.join(10)
    assert not waiting.is_alive()
    lost = Orders()
    lost.obey([line(kind="break", generation=1)], lambda: None)
    lost.wait_go(1, 30)
    Orders().wait_go(1, 0.01)


def test_lingering_ends_when_the_generation_breaks():
    orders = Orders()
    waiting = threading.Thread(target=lambda: orders.wait_over(2), daemon=True)
    waiting.start()
    orders.obey([line(kind="break", generation=1)], lambda: None)
    waiting.join(0.05)
    assert waiting.is_alive()
    orders.obey([line(kind="break", generation=2)], lambda: None)
    waiting.join(10)
    assert not waiting.is_alive()
