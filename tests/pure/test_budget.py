"""The bound on what is fetched: a task's bucket, and how tasks share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.kafka.rate_limit import Bucket, shares

RATES = st.floats(1.0, 1e10)


@given(RATES, st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(1, 1 << 24)), max_size=60))
def test_a_bucket_never_gives_more_than_its_rate_but_for_one_answer(
    rate: float, steps: list[tuple[float, int]]
) -> None:
    """Whoever asks, at whatever moments: in the time since the first check no more came than the rate allows, the last
    answer aside, since a broker gives one batch however large it is.
    """
    bucket, now = Bucket(rate), 0.0
    assert bucket.left(now) == 0, "it begins empty"
    came = last = 0
    for passed, batch in steps:
        now += passed
        if asked := bucket.left(now):
            last = max(asked, batch)
            bucket.spend(last)
            came += last
    assert came - last <= rate * now * 1.000001 + 1


@given(RATES, st.integers(1, 1 << 24))
def test_whoever_waits_as_long_as_asked_may_ask(rate: float, batch: int) -> None:
    bucket, now = Bucket(rate), 0.0
    for _ in range(20):
        now += bucket.wait(now) * 1.000001
        assert bucket.left(now)
        bucket.spend(batch)


def test_a_bucket_that_is_used_as_soon_as_it_may_be_gives_its_rate() -> None:
    bucket, now, came = Bucket(1_000_000), 0.0, 0
    bucket.left(now)
    while now < 60:
        now += max(0.001, bucket.wait(now))
        if bucket.left(now):
            bucket.spend(900_000)  # one batch, larger than what may be held
            came += 900_000
    assert came == pytest.approx(60_000_000, rel=0.03)


def test_rest_is_not_saved_up() -> None:
    bucket = Bucket(1000)
    bucket.left(0.0)
    assert bucket.left(3600.0) == 500


@given(RATES, st.lists(st.floats(0.0, 1e12), min_size=1, max_size=50))
def test_shares_add_up_and_none_is_nothing(rate: float, demands: list[float]) -> None:
    given_out = shares(rate, demands)
    assert sum(given_out) == pytest.approx(rate)
    assert min(given_out) > 0


def test_who_has_more_to_move_gets_more() -> None:
    idle, busy, busier = shares(100.0, [0, 10, 30])
    assert idle < busy < busier
    assert shares(90.0, [0, 0, 0]) == [30.0, 30.0, 30.0]
