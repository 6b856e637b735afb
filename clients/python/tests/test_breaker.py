# SPDX-License-Identifier: MIT
from __future__ import annotations

import pytest
from expectations import ManualClock

from allowd.breaker import Breaker, Outcome


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def breaker(clock) -> Breaker:
    return Breaker(threshold=3, open_for=1.0, clock=clock)


def end_a_call(breaker: Breaker, outcome: Outcome) -> None:
    ticket = breaker.admit()
    assert ticket is not None
    breaker.record(ticket, outcome)


def open_it(breaker: Breaker) -> None:
    for _ in range(3):
        end_a_call(breaker, Outcome.TIMED_OUT)


def test_the_third_time_out_in_a_row_opens_it(breaker):
    end_a_call(breaker, Outcome.TIMED_OUT)
    end_a_call(breaker, Outcome.TIMED_OUT)
    end_a_call(breaker, Outcome.TIMED_OUT)
    assert breaker.admit() is None


def test_any_other_end_ends_the_row(breaker):
    for _ in range(5):
        end_a_call(breaker, Outcome.TIMED_OUT)
        end_a_call(breaker, Outcome.TIMED_OUT)
        end_a_call(breaker, Outcome.PROMPT)
    assert breaker.admit() is not None


def test_an_interrupted_call_says_nothing(breaker):
    end_a_call(breaker, Outcome.TIMED_OUT)
    end_a_call(breaker, Outcome.TIMED_OUT)
    end_a_call(breaker, Outcome.WITHDRAWN)
    end_a_call(breaker, Outcome.TIMED_OUT)
    assert breaker.admit() is None


def test_it_stays_open_for_exactly_its_time(breaker, clock):
    open_it(breaker)
    clock.now += 0.999
    assert breaker.admit() is None
    clock.now += 0.001
    assert breaker.admit() is not None


def test_only_one_probe_at_a_time(breaker, clock):
    open_it(breaker)
    clock.now += 5.0
    assert breaker.admit() is not None
    assert breaker.admit() is None
    clock.now += 5.0
    assert breaker.admit() is None


def test_a_probe_that_is_answered_closes_it(breaker, clock):
    open_it(breaker)
    clock.now += 1.0
    end_a_call(breaker, Outcome.PROMPT)
    end_a_call(breaker, Outcome.TIMED_OUT)
    end_a_call(breaker, Outcome.TIMED_OUT)
    assert breaker.admit() is not None


def test_a_probe_that_times_out_opens_it_again_at_once(breaker, clock):
    open_it(breaker)
    clock.now += 1.0
    end_a_call(breaker, Outcome.TIMED_OUT)
    assert breaker.admit() is None
    clock.now += 0.999
    assert breaker.admit() is None
    clock.now += 0.001
    assert breaker.admit() is not None


def test_a_probe_that_was_interrupted_makes_room_for_the_next(breaker, clock):
    open_it(breaker)
    clock.now += 1.0
    end_a_call(breaker, Outcome.WITHDRAWN)
    assert breaker.admit() is not None
    assert breaker.admit() is None


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_call_from_before_it_opened_changes_nothing(breaker, clock, outcome):
    early = breaker.admit()
    open_it(breaker)
    clock.now += 0.5
    breaker.record(early, outcome)
    assert breaker.admit() is None
    assert breaker.retry_in() == pytest.approx(0.5)


def test_a_call_from_before_it_opened_is_not_taken_for_the_probe(breaker, clock):
    early = breaker.admit()
    open_it(breaker)
    clock.now += 1.0
    assert breaker.admit() is not None
    breaker.record(early, Outcome.PROMPT)
    assert breaker.admit() is None


def test_retry_in_counts_down_to_the_probe(breaker, clock):
    assert breaker.retry_in() == 0.0
    open_it(breaker)
    assert breaker.retry_in() == pytest.approx(1.0)
    clock.now += 0.75
    assert breaker.retry_in() == pytest.approx(0.25)
    clock.now += 5.0
    assert breaker.retry_in() == 0.0


def test_a_fresh_one_is_closed_and_has_the_same_settings(breaker):
    open_it(breaker)
    fresh = breaker.fresh()
    assert fresh.admit() is not None
    assert (fresh.threshold, fresh.open_for) == (3, 1.0)


@pytest.mark.parametrize("settings", [{"threshold": 0}, {"open_for": 0.0}, {"open_for": float("nan")}])
def test_settings_without_sense_are_refused(settings):
    with pytest.raises(ValueError):
        Breaker(**settings)
