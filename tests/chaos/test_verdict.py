# SPDX-License-Identifier: MIT
"""The judge: what it must notice, and what it must not hold against an agent."""

from __future__ import annotations

import pytest

from traffic import Question, Report, Sample, Watched
from verdict import (
    Broken,
    Bucket,
    Fleet,
    check_answers,
    check_exact,
    first_answer_of_store,
    grown,
    most_beyond,
    share_of_store,
)

MS = 1_000_000
DEADLINE_MS = 20


def sample(asked: float, took: float, *, blind: float = 0.0, source: str = "store", allowed: bool = True) -> Sample:
    """Times in ms; `blind` is for how long the client had not looked when it saw the answer."""
    asked_at, seen_at = int(asked * MS), int((asked + took) * MS)
    not_before = max(seen_at - int(blind * MS), asked_at)
    verdict = "ok" if allowed else "limited"
    return Sample(0, 0, "k", asked_at, asked_at, not_before, seen_at, allowed, verdict, source)


def report(*others: Sample, prompt: int = 20_000) -> Report:
    samples = [sample(number, 1) for number in range(prompt)]
    questions = [Question("api", ["k"], DEADLINE_MS / 1000)]
    return Report(questions, [*samples, *others], starvation=[[(0, 0)]], watched=[[]])


def late(count: int) -> list[Sample]:
    return [sample(1000 + number, DEADLINE_MS + 6) for number in range(count)]


def lagging(late_report: Report, moment: float) -> Report:
    """The agent says at that moment that its loop was held for 10 ms."""
    late_report.watched = [[Watched(int(moment * MS), 10 * MS, 0.0)]]
    return late_report


def test_answers_up_to_five_milliseconds_behind_their_deadline_are_in_time() -> None:
    times = check_answers(report(*[sample(number, DEADLINE_MS + 4.9) for number in range(100)]))
    assert (times.late, times.late_of_agent) == (0, 0)
    assert times.latest_ms == pytest.approx(4.9)


def test_one_answer_later_than_that_and_without_a_lag_to_explain_it_is_too_many() -> None:
    with pytest.raises(Broken, match="1 came later than the agent's own lag explains"):
        check_answers(report(*late(1)))


def test_two_in_twenty_thousand_may_be_late_by_the_lag_of_the_loop_and_three_may_not() -> None:
    assert check_answers(lagging(report(*late(2)), 1500)).late_of_agent == 2
    with pytest.raises(Broken, match="more than one in 10,000 was late"):
        check_answers(lagging(report(*late(3)), 1500))


def test_a_lag_explains_what_was_late_in_its_second_and_no_other() -> None:
    for moment in (900, 3000):
        with pytest.raises(Broken, match="own lag"):
            check_answers(lagging(report(*late(1)), moment))


def test_later_than_the_lag_of_the_loop_is_too_late() -> None:
    with pytest.raises(Broken, match="own lag"):
        check_answers(lagging(report(sample(1000, DEADLINE_MS + 16)), 1500))


def test_an_answer_that_the_client_may_have_overlooked_is_not_late() -> None:
    assert check_answers(report(sample(1000, DEADLINE_MS + 50, blind=46))).late == 0
    with pytest.raises(Broken):
        check_answers(report(sample(1000, DEADLINE_MS + 50, blind=44)))


def test_waiting_for_a_processor_is_taken_off_only_while_the_query_was_open() -> None:
    starved = report(sample(1000, DEADLINE_MS + 30))
    starved.starvation = [[(0, 0), (1010 * MS, 26 * MS)]]
    times = check_answers(starved)
    assert (times.late, times.late_of_agent) == (1, 0)
    assert times.latest_ms == pytest.approx(4)
    starved.starvation = [[(0, 0), (990 * MS, 26 * MS), (1100 * MS, 60 * MS)]]
    with pytest.raises(Broken):
        check_answers(starved)


def test_what_the_hypervisor_took_is_taken_off_as_well() -> None:
    stolen = report(sample(1000, DEADLINE_MS + 30))
    stolen.steal = [(0, 0), (1010 * MS, 30 * MS)]
    assert check_answers(stolen).late_of_agent == 0


def test_a_problem_of_the_client_is_told() -> None:
    lost = report()
    lost.problems = ["the query with msgid 7 was never answered"]
    with pytest.raises(Broken, match="1 times: the query with msgid 7 was never answered"):
        check_answers(lost)


def test_a_handful_of_answers_proves_nothing() -> None:
    with pytest.raises(Broken, match="too few"):
        check_answers(report(prompt=50))


def test_a_curve_grows_between_the_points_that_enclose_an_interval() -> None:
    curve = [(10, 100), (20, 150), (30, 300)]
    assert grown(curve, 12, 25) == 50
    assert grown(curve, 20, 30) == 150
    assert grown(curve, 0, 5) == 0
    assert grown([], 0, 5) == 0


# Never more than the limit


LIMIT = Bucket(5, 10)
# All at once, then each on the moment at which it comes back.
GREEDY = [sample(0, 0) for _ in range(5)] + [sample(100 * number, 0) for number in range(1, 50)]


def beyond(*samples: Sample, given_back: int = 0) -> float:
    return most_beyond(report(), samples, *LIMIT, given_back)


def test_a_bucket_that_gives_all_it_may_is_not_beyond() -> None:
    assert beyond(*GREEDY) == pytest.approx(0)
    check_exact(report(), GREEDY, LIMIT, Fleet())


def test_one_permit_too_many_is_found_wherever_it_is() -> None:
    for moment in (0, 1000, 2550, 4900):
        with pytest.raises(Broken, match="permits more"):
            check_exact(report(), [*GREEDY, sample(moment, 0)], LIMIT, Fleet(clock_error=0.01))


def test_as_much_as_the_clocks_may_be_apart_is_allowed() -> None:
    too_early = [sample(0, 0) for _ in range(5)] + [sample(98, 0)]
    check_exact(report(), too_early, LIMIT, Fleet(clock_error=0.003))
    with pytest.raises(Broken):
        check_exact(report(), too_early, LIMIT, Fleet(clock_error=0.001))


def test_a_full_burst_in_the_middle_is_found_although_the_whole_would_allow_it() -> None:
    grants = [sample(10_000, 0) for _ in range(5)] + [sample(10_050, 0)]
    assert beyond(sample(0, 0), *grants) == pytest.approx(0.5)


def test_a_grant_counts_only_where_it_must_have_been_given() -> None:
    # The sixth was on its way for a second: it may have been decided at its end.
    assert beyond(*GREEDY[:5], sample(0, 1000)) <= 0


def test_keys_are_counted_apart_and_what_the_policy_let_pass_not_at_all() -> None:
    grants = GREEDY[:5]
    others = [one._replace(key="other") for one in grants]
    passed = [sample(0, 0, source="fallback") for _ in range(9)]
    refused = [sample(0, 0, allowed=False) for _ in range(9)]
    assert beyond(*grants, *others, *passed, *refused) == 0
    assert beyond(*grants, sample(0, 0, source="local")) == pytest.approx(1)
    assert beyond() == -5


def test_what_was_granted_too_late_and_given_back_may_be_granted_again() -> None:
    refused = sample(0, DEADLINE_MS)._replace(allowed=False, verdict="unavailable", source="fallback")
    grants = [*GREEDY[:5], sample(30, 0)]
    assert beyond(*grants, refused) == pytest.approx(0.7), "nothing was given back"
    assert beyond(*grants, refused, given_back=1) <= 0
    assert beyond(*grants, refused._replace(key="other"), given_back=1) == pytest.approx(0.7)
    at_once = refused._replace(seen_at=1 * MS)
    assert beyond(*grants, at_once, given_back=1) == pytest.approx(0.7), "it was refused without being asked"
    later = refused._replace(asked_at=50 * MS, sent_at=50 * MS, seen_at=(50 + DEADLINE_MS) * MS)
    assert beyond(*grants, later, given_back=1) == pytest.approx(0.7)


# Coming back


def test_the_first_answer_of_the_store_is_that_to_a_query_asked_since() -> None:
    samples = [sample(90, 30), sample(110, 5, source="fallback"), sample(130, 10), sample(150, 1)]
    assert first_answer_of_store(samples, 100 * MS) == pytest.approx(0.04)
    with pytest.raises(Broken, match="never"):
        first_answer_of_store(samples, 200 * MS)


def test_the_share_of_the_store_is_of_what_nobody_was_kept_from() -> None:
    asked = [sample(number, 1) for number in range(300)]
    fallen_back = [one._replace(source="fallback") for one in asked[:100]]
    judged = report()
    assert share_of_store(judged, asked) == 1
    assert share_of_store(judged, fallen_back + asked[100:]) == pytest.approx(2 / 3)
    # A server that was ready to run, and did not, from 50 to 99 ms.
    judged.server_starvation = [[(0, 0), *((moment * MS, (moment - 50) * MS) for moment in range(50, 100))]]
    assert share_of_store(judged, fallen_back + asked[100:]) == pytest.approx(2 / 3), "not so long that it matters"
    judged.server_starvation = [[(0, 0), *((moment * MS, (moment - 50) * 8 * MS) for moment in range(50, 100))]]
    assert share_of_store(judged, fallen_back + asked[100:]) > 0.7
    judged.server_starvation = [[(0, 0), (140 * MS, 90 * MS)]]
    assert share_of_store(judged, fallen_back + asked[100:]) > 0.7, "a wait from 50 to 140 ms is known at its end"
    with pytest.raises(Broken):
        share_of_store(judged, [])
