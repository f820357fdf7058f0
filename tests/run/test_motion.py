"""When a run that stands still is looked into."""

from daisychain.run.motion import STALLED_S, STALLED_STEPS, Motion


def stalled(motion: Motion, now_s: float, step: int = 1, *, rests: bool = False, step_s: float = 0.1) -> bool:
    return motion.is_stalled((1, step), now_s, rests=rests, step_s=step_s)


def test_a_run_that_stands_is_looked_into_once_and_again_after_twice_the_time() -> None:
    motion = Motion()
    assert not stalled(motion, 100.0)
    assert not stalled(motion, 100.0 + STALLED_S)
    looked = [at for at in range(111, 200) if stalled(motion, float(at))]
    assert looked == [111, 123, 147, 195]


def test_a_step_and_a_rest_begin_the_wait_anew() -> None:
    motion = Motion()
    stalled(motion, 0.0)
    assert not stalled(motion, 20.0, step=2)
    assert not stalled(motion, 40.0, step=2, rests=True)
    assert not stalled(motion, 50.0, step=2)
    assert stalled(motion, 51.0, step=2)
    assert not stalled(motion, 52.0, step=3)
    assert stalled(motion, 63.0, step=3), "and the next wait is as short as the first"


def test_steps_that_take_long_are_given_time() -> None:
    motion = Motion()
    stalled(motion, 0.0)
    assert not stalled(motion, 10.0 * STALLED_STEPS, step_s=10.0)
    assert stalled(motion, 10.0 * STALLED_STEPS + 1, step_s=10.0)
