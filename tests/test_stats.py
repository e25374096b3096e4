"""Intervals against textbook values and closed forms, and their coverage by simulation.

The short form of the coverage checks: the long form is tests/stability_stats.py, which `make stability` runs.
"""

import numpy as np
import pytest
from scipy import stats as scipy_stats
from stability_stats import DESIGNS, Coverage, cover

from resnorm_lib import power, stats
from resnorm_lib.ranking import hanley_mcneil_error


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


@pytest.mark.parametrize("level", [0, 1, 99, -0.5, np.nan])
@pytest.mark.parametrize(
    "call",
    [
        stats.mean_interval,
        stats.geometric_mean_interval,
        lambda x, level: stats.paired_difference_interval(x, x, level),
        lambda x, level: stats.proportion_interval([True, False], level),
        lambda x, level: stats.grid_mean_interval([x, x], level),
        lambda x, level: stats.power_law_fit(x, [x, x], level),
        lambda x, level: stats.exponential_fit(x, [x, x], level),
    ],
)
def test_a_level_is_a_probability(call, level):
    with pytest.raises(ValueError, match=f"level = {level} is not allowed: give a probability between 0 and 1"):
        call([1.0, 2.0, 4.0], level=level)


def test_paired_difference_is_the_paired_t_test():
    generator = np.random.default_rng(0)
    common = 10 * generator.normal(size=7)
    first, second = common + generator.normal(size=7), common + generator.normal(size=7)
    interval = stats.paired_difference_interval(first, second, 0.95)
    expected = scipy_stats.ttest_rel(first, second).confidence_interval(0.95)
    assert (interval.low, interval.high) == pytest.approx(tuple(expected), rel=1e-12)
    assert interval.value == pytest.approx(first.mean() - second.mean())
    assert interval.seeds == 7


def test_a_pair_needs_both():
    with pytest.raises(ValueError, match="3 seeds against 2"):
        stats.paired_difference_interval([1.0, 2.0, 3.0], [1.0, 2.0])


def test_exact_proportion():
    """Where n of n succeed, Clopper and Pearson's lower bound is (α/2)^(1/n); where none does, the mirror image."""
    all_of_them = stats.proportion_interval([True] * 10, 0.95)
    assert all_of_them == pytest.approx((1, 0.025**0.1, 1, 10))
    none = stats.proportion_interval([False] * 10, 0.95)
    assert none == pytest.approx((0, 0, 1 - 0.025**0.1, 10))
    some = stats.proportion_interval([1, 1, 0, 1], 0.95)  # bounds are quantiles of beta distributions
    assert some == pytest.approx((0.75, scipy_stats.beta.ppf(0.025, 3, 2), scipy_stats.beta.ppf(0.975, 4, 1), 4))


def test_wilson_proportion():
    n, share, z = 10, 0.7, 1.959964
    interval = stats.proportion_interval([True] * 7 + [False] * 3, 0.95, "wilson")
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    assert interval == pytest.approx((share, middle - half, middle + half, n), rel=1e-6)


def test_a_proportion_is_of_booleans():
    with pytest.raises(ValueError, match="one boolean for each seed"):
        stats.proportion_interval([0.5, 1.0])
    with pytest.raises(ValueError, match="method = 'wald'"):
        stats.proportion_interval([True], method="wald")
    with pytest.raises(ValueError, match="one number for each seed"):
        stats.proportion_interval(np.ones((3, 4), dtype=bool))


def test_grid_mean_of_one_kind_of_spread():
    """Where only seeds differ, or only configurations, the interval is that of their means."""
    samples = np.array([0.1, 0.4, 0.2, 0.9])
    by_seed = stats.grid_mean_interval(np.tile(samples, (6, 1)))
    assert by_seed == pytest.approx(stats.mean_interval(samples))
    by_configuration = stats.grid_mean_interval(np.tile(samples[:, None], (1, 6)))
    assert by_configuration[:3] == pytest.approx(stats.mean_interval(samples)[:3])
    assert by_configuration.seeds == 6
    assert stats.grid_mean_interval(np.full((3, 4), 2.5)) == (2.5, 2.5, 2.5, 4)


def test_grid_mean_by_hand():
    """A 2 × 3 layout: configuration means 2 and 5, seed means 1.5, 3.5, 5.5, rests ± 0.5, 0, ∓ 0.5."""
    values = np.array([[0.5, 2.0, 3.5], [2.5, 5.0, 7.5]])
    rests = values - values.mean(1, keepdims=True) - values.mean(0) + values.mean()
    assert rests == pytest.approx(np.array([[0.5, 0, -0.5], [-0.5, 0, 0.5]]))
    squares = 3 * 4.5, 2 * 4.0, 1.0 / 2
    total = squares[0] + squares[1] - squares[2]
    degrees = total**2 / (squares[0] ** 2 / 1 + squares[1] ** 2 / 2 + squares[2] ** 2 / 2)
    half = scipy_stats.t.ppf(0.975, degrees) * np.sqrt(total / 6)
    assert stats.grid_mean_interval(values, 0.95) == pytest.approx((3.5, 3.5 - half, 3.5 + half, 3))


def test_grid_mean_never_below_one_kind_alone():
    """Seed means that agree by chance must not take the rests' mean square off the configurations'."""
    values = np.array([[0.0, 2.0], [2.0, 1.0], [2.0, 1.0]])
    squares, rests = 2 * np.var([1, 1.5, 1.5], ddof=1), (2 * 1.0 + 4 * 0.25) / 2
    assert squares < rests  # so that their difference would be negative
    degrees = squares**2 / (squares**2 / 2 + rests**2 / 2)
    half = scipy_stats.t.ppf(0.975, degrees) * np.sqrt(squares / 6)
    assert stats.grid_mean_interval(values, 0.95) == pytest.approx((4 / 3, 4 / 3 - half, 4 / 3 + half, 2))


@pytest.mark.parametrize(
    "values, message",
    [(np.ones(4), "at least two"), (np.ones((1, 4)), "at least two"), ([[1, np.nan], [1, 2]], "not finite")],
)
def test_bad_grids(values, message):
    with pytest.raises(ValueError, match=message):
        stats.grid_mean_interval(values)


def test_exact_laws():
    sizes = np.array([2.0, 4, 8, 32])
    slopes, prefactors = np.array([0.5, 0.7, 0.3]), np.array([2.0, 4.0, 1.0])
    fit = stats.power_law_fit(sizes, prefactors[:, None] * sizes ** slopes[:, None])
    assert fit.slope == pytest.approx(stats.mean_interval(slopes))
    assert fit.prefactor == pytest.approx(stats.geometric_mean_interval(prefactors))
    assert fit.r_squared == pytest.approx(1)
    fit = stats.exponential_fit(sizes, prefactors[:, None] * np.exp(-slopes[:, None] * sizes), 0.9)
    assert fit.slope == pytest.approx(stats.mean_interval(-slopes, 0.9))
    assert fit.prefactor == pytest.approx(stats.geometric_mean_interval(prefactors, 0.9))
    assert fit.r_squared == pytest.approx(1)


def test_fits_are_least_squares_of_logarithms():
    generator = np.random.default_rng(1)
    x, values = np.array([1.0, 2, 3, 5, 9]), np.exp(generator.normal(size=(4, 5)))
    for fit, run in ((stats.power_law_fit(x, values), np.log(x)), (stats.exponential_fit(x, values), x)):
        lines = np.polynomial.polynomial.polyfit(run, np.log(values).T, 1)
        assert fit.slope == pytest.approx(stats.mean_interval(lines[1]))
        assert fit.prefactor == pytest.approx(stats.geometric_mean_interval(np.exp(lines[0])))
        assert fit.r_squared == pytest.approx(np.corrcoef(run, np.log(values).mean(0))[0, 1] ** 2)


def test_an_exponential_is_no_power_law():
    depths = np.array([2.0, 4, 8, 16, 32])
    values = np.exp(0.3 * depths) * np.array([[1.0], [1.1]])
    assert stats.power_law_fit(depths, values).r_squared < 0.9 < stats.exponential_fit(depths, values).r_squared


@pytest.mark.parametrize(
    "x, values, message",
    [
        ([1, 2, 3], [[1, 2, 3]], "at least two and three"),
        ([1, 2], [[1, 2], [1, 2]], "at least two and three"),
        ([1, 2, 3], [[1, 2], [1, 2]], r"\(2, 2\) for 3 points"),
        ([1, 2, 3], [[1, 2, 3], [1, 0, 3]], "has no logarithm"),
        ([1, 2, 3], [[1, 2, 3], [1, np.inf, 3]], "has no logarithm"),
        ([1, 1, 2], [[1, 2, 3], [1, 2, 3]], "three different"),
        ([[1, 2, 3]], [[1, 2, 3], [1, 2, 3]], "one row"),
    ],
)
def test_bad_fits(x, values, message):
    for fit in (stats.power_law_fit, stats.exponential_fit):
        with pytest.raises(ValueError, match=message):
            fit(x, values)


def test_a_power_law_has_positive_sizes():
    with pytest.raises(ValueError, match="positive"):
        stats.power_law_fit([0, 1, 2], [[1, 2, 3], [1, 2, 3]])


def test_seeds_needed_as_tabulated():
    """The textbook case: half a deviation, 5 %, 80 %: 34 pairs, or 64 in each of two groups."""
    assert power.seeds_needed(0.5, 1.0, paired=True) == 34
    assert power.seeds_needed(0.5, 1.0, paired=False) == 64
    assert power.seeds_needed(-1.0, 2.0, paired=True) == 34
    assert power.seeds_needed(100.0, 1.0, paired=False) == 2


@pytest.mark.parametrize("paired", [True, False])
def test_power_by_simulation(paired):
    """Of 20,000 t tests of five seeds the share that rejects is the power, within four standard errors (0.014)."""
    first, second = np.random.default_rng(2).normal(size=(2, 20000, 5))
    test = (
        scipy_stats.ttest_1samp(first + 1.2, 0, axis=1)
        if paired
        else scipy_stats.ttest_ind(first + 1.2, second, axis=1)
    )
    expected = (power.paired_power if paired else power.unpaired_power)(1.2, 1.0, 5)
    assert 0.2 < expected < 0.8
    assert np.mean(test.pvalue < 0.05) == pytest.approx(expected, abs=0.014)


def test_power_at_both_ends():
    assert power.paired_power(1e-9, 1.0, 5) == pytest.approx(0.05)
    assert power.unpaired_power(1e-9, 1.0, 5, 0.01) == pytest.approx(0.01)
    assert power.paired_power(50.0, 1.0, 5) == pytest.approx(1)
    assert power.seeds_needed(0.3, 1.0, paired=True, power=0.9, significance=0.01) == min(
        n for n in range(2, 300) if power.paired_power(0.3, 1.0, n, 0.01) >= 0.9
    )


def test_configurations_needed():
    """About 400 configurations tell .58 from a coin; 90 do not tell it apart by far."""
    assert 380 < power.configurations_needed(0.58) < 420
    assert power.configurations_needed(0.42) == pytest.approx(power.configurations_needed(0.58), rel=0.03)
    assert power.configurations_needed(0.78) < 60
    assert power.configurations_needed(0.58, positive_share=0.1) > 2 * power.configurations_needed(0.58)
    assert power.configurations_needed(0.886, 0.776) > power.configurations_needed(0.886, 0.582)


def test_configurations_needed_uses_both_errors():
    """Each area has its own standard error; at .9 against .7 they differ by a third."""
    z, one, other = scipy_stats.norm.isf(0.025), 0.9, 0.7
    reach = lambda n: (
        z * hanley_mcneil_error(other, round(n / 2), n - round(n / 2))
        + scipy_stats.norm.isf(0.2) * hanley_mcneil_error(one, round(n / 2), n - round(n / 2))
    )
    assert power.configurations_needed(one, other) == min(n for n in range(4, 200) if reach(n) <= 0.2)


def test_configurations_needed_by_simulation():
    """At the size asked for, Mann and Whitney's test finds an area of 0.7 about as often as wanted (0.8 ± 0.06)."""
    size = power.configurations_needed(0.7)
    half, shift = size // 2, np.sqrt(2) * scipy_stats.norm.ppf(0.7)
    first, second = np.random.default_rng(3).normal(size=(2, 2000, half))
    found = scipy_stats.mannwhitneyu(first + shift, second, axis=1, method="asymptotic").pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.06)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: power.paired_power(1, 1, 1), "seeds = 1"),
        (lambda: power.unpaired_power(1, 1, 1), "seeds = 1"),
        (lambda: power.paired_power(0, 1, 5), "effect = 0"),
        (lambda: power.unpaired_power(np.nan, 1, 5), "effect = nan"),
        (lambda: power.paired_power(1, 0, 5), "deviation = 0"),
        (lambda: power.paired_power(1, 1, 5, 5), "significance = 5"),
        (lambda: power.seeds_needed(1, 1, paired=True, power=0.01), "power = 0.01"),
        (lambda: power.seeds_needed(1e-6, 1, paired=True), "over 10⁶ seeds"),
        (lambda: power.configurations_needed(0.5), "two different"),
        (lambda: power.configurations_needed(1.0), "two different"),
        (lambda: power.configurations_needed(0.6, positive_share=1), "positive_share = 1"),
        (lambda: power.configurations_needed(0.6, power=1), "power = 1"),
        (lambda: power.configurations_needed(0.5001), "over 10⁶ configurations"),
    ],
)
def test_bad_power(call, message):
    with pytest.raises(ValueError, match=message):
        call()


FAST = [name for name in DESIGNS if not name.startswith(("AUC", "matched"))]


@pytest.mark.parametrize("name", FAST)
def test_short_form_of_coverage(name):
    """Coverage of 90 % intervals over 300 data sets; Monte Carlo error 0.017, and four of them are allowed."""
    found = cover(name, 0.9, 300)
    assert found.passes(DESIGNS[name], 0.9), found


def test_coverage_checks_can_fail():
    """The checks' own verdict: a deviation beyond slack and four errors fails, on either side or on one."""
    design = DESIGNS["mean, 5 seeds"]
    assert Coverage(0.95, 0.02, 0.03, 1000).passes(design, 0.95)
    assert not Coverage(0.91, 0.04, 0.05, 1000).passes(design, 0.95)
    assert not Coverage(0.99, 0.005, 0.005, 1000).passes(design, 0.95)
    exact = DESIGNS["proportion, exact, 15 seeds"]
    assert Coverage(0.99, 0.005, 0.005, 1000).passes(exact, 0.95)
    assert not Coverage(0.91, 0.04, 0.05, 1000).passes(exact, 0.95)
