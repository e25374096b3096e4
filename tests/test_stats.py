"""Intervals against textbook values, and their coverage by simulation."""

import numpy as np
import pytest

from resnorm_lib import stats


def test_mean_interval_against_a_table():
    """Five numbers of mean 3 and deviation √2.5; Student's t for 4 degrees of freedom is 4.6041 at 99 %."""
    interval = stats.mean_interval([1, 2, 3, 4, 5])
    half = 4.604095 * np.sqrt(2.5 / 5)
    assert interval.value == pytest.approx(3)
    assert (interval.low, interval.high) == pytest.approx((3 - half, 3 + half), rel=1e-6)
    assert interval.seeds == 5


def test_level():
    assert stats.mean_interval([1, 2, 3, 4, 5], level=0.95).high == pytest.approx(3 + 2.776445 * np.sqrt(0.5), rel=1e-6)


def test_coverage():
    """Of 4,000 intervals at 90 %, between 88 % and 92 % cover the truth (four standard errors)."""
    samples = np.random.default_rng(0).normal(2, 3, size=(4000, 5))
    intervals = [stats.mean_interval(row, level=0.9) for row in samples]
    covered = np.mean([interval.low <= 2 <= interval.high for interval in intervals])
    assert 0.88 < covered < 0.92


def test_geometric_mean():
    interval = stats.geometric_mean_interval([1, 10, 100])
    assert interval.value == pytest.approx(10)
    assert interval.low * interval.high == pytest.approx(100)
    assert interval.low == pytest.approx(10 / np.exp(9.924843 * np.log(10) / np.sqrt(3)), rel=1e-5)


def test_span_is_the_worst_with_both_ends():
    assert stats.span([0.2, 0.7, 0.1]) == (0.7, 0.1, 0.7, 3)


@pytest.mark.parametrize("call", [stats.mean_interval, stats.geometric_mean_interval, stats.span])
@pytest.mark.parametrize(
    "samples, message", [([[1.0, 2.0]], "one number for each seed"), ([1.0, np.nan], "not finite"), ([], "at least")]
)
def test_bad_samples(call, samples, message):
    with pytest.raises(ValueError, match=message):
        call(samples)


def test_one_seed_has_no_interval():
    with pytest.raises(ValueError, match="at least 2"):
        stats.mean_interval([1.0])


def test_no_logarithm():
    with pytest.raises(ValueError, match="not positive"):
        stats.geometric_mean_interval([1.0, 0.0])
