"""The simulated scheduler does what is worked out by hand, and loses no second without saying where it went."""

import math
import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulated import Job, Site, bound, longest_first, simulate


def jobs(*seconds: float, save_seconds: float = 10.0) -> list[Job]:
    return [Job(label=str(place), seconds=each, save_seconds=save_seconds) for place, each in enumerate(seconds)]


def in_turn(*lifetimes: float) -> Iterable[float]:
    yield from lifetimes
    while True:
        yield math.inf


def test_one_device_takes_the_sum() -> None:
    found = simulate(jobs(5, 7, 9), Site(devices=1))
    assert (found.makespan, found.trained, found.lost, found.preemptions) == (21, 21, 0, 0)
    assert found.attempts == {"0": 1, "1": 1, "2": 1}


def test_equal_jobs_are_shared_equally() -> None:
    assert simulate(jobs(*[4.0] * 12), Site(devices=3)).makespan == 16


def test_the_order_decides_when_the_last_one_ends() -> None:
    """In file order the long one starts at 2 on a device of two; first, it hides behind the others."""
    in_file = jobs(2, 2, 6)
    assert simulate(in_file, Site(devices=2)).makespan == 8
    assert simulate(longest_first(in_file), Site(devices=2)).makespan == 6 == bound(in_file, 2)


def test_a_start_is_paid_by_each_group() -> None:
    found = simulate(jobs(5, 5), Site(devices=1, start_seconds=3))
    assert (found.makespan, found.starting, found.trained) == (16, 6, 10)


def test_a_preempted_group_goes_on_from_its_last_state_once_its_lease_expires() -> None:
    """Saved at 10, 20 and 30; taken away at 35; free again at 95; the device is back at 55: 70 more seconds."""
    lives = iter(in_turn(35))
    site = Site(devices=1, lease_seconds=60, away_seconds=20)
    found = simulate(jobs(100), site, lambda: next(lives))
    assert (found.makespan, found.lost, found.preemptions, found.attempts) == (95 + 70, 5, 1, {"0": 2})


def test_another_device_takes_a_preempted_group_over() -> None:
    """The first device dies at 15 (10 kept); the second has been idle since 4 and takes over at 15 + 6."""
    lives = iter(in_turn(15))
    found = simulate(jobs(30, 4), Site(devices=2, lease_seconds=6, away_seconds=1000), lambda: next(lives))
    assert (found.makespan, found.lost) == (15 + 6 + 20, 5)


def test_a_device_that_dies_while_it_starts_loses_no_training() -> None:
    lives = iter(in_turn(2))
    found = simulate(jobs(10), Site(devices=1, start_seconds=3), lambda: next(lives))
    assert (found.makespan, found.lost, found.starting) == (2 + 3 + 10, 0, 5)


def test_without_states_a_preemption_loses_the_attempt() -> None:
    lives = iter(in_turn(9))
    found = simulate(jobs(10, save_seconds=math.inf), Site(devices=1), lambda: next(lives))
    assert (found.makespan, found.lost) == (19, 9)


@pytest.mark.parametrize("devices", [1, 2, 5])
def test_nothing_to_do_takes_no_time(devices: int) -> None:
    assert simulate([], Site(devices=devices)).makespan == 0


@given(
    seconds=st.lists(st.integers(1, 500), min_size=1, max_size=20),
    devices=st.integers(1, 8),
    start_seconds=st.integers(0, 20),
    mean=st.integers(60, 1000),
    seed=st.integers(0, 2**32),
)
def test_every_second_of_a_device_is_accounted_for(
    seconds: list[int], devices: int, start_seconds: int, mean: int, seed: int
) -> None:
    wanted, draw = jobs(*seconds), random.Random(seed)
    site = Site(devices=devices, start_seconds=start_seconds, lease_seconds=60, away_seconds=30)
    found = simulate(wanted, site, lambda: draw.expovariate(1 / mean))
    assert found.trained == pytest.approx(sum(seconds)), "each second that counts is trained once"
    assert found.makespan >= bound(wanted, devices) - 1e-6
    assert found.trained + found.lost + found.starting <= devices * found.makespan + 1e-6
    assert sum(found.attempts.values()) == len(seconds) + found.preemptions
    assert found.lost <= found.preemptions * 10, "at most what lies between two states"
    assert found.starting <= sum(found.attempts.values()) * start_seconds
