"""Ranking against brute-force counts, published examples and a bootstrap written out with indices."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from scipy.special import expit, logit
from stability_stats import DESIGNS, cover

from resnorm_lib import ranking, resampling, stats


def brute(scores, outcomes, strata=None):
    """Concordance by a loop over pairs: (configurations,) each."""
    strata = np.zeros(len(scores)) if strata is None else np.asarray(strata)
    agree = pairs = 0
    for i in range(len(scores)):
        for j in range(len(scores)):
            if outcomes[i] > outcomes[j] and strata[i] == strata[j]:
                pairs += 1
                agree += 1 if scores[i] > scores[j] else 0.5 if scores[i] == scores[j] else 0
    return agree / pairs


def grid(seed, configurations=24, seeds=3, levels=None):
    """Scores and outcomes that agree somewhat; with ``levels``, on so few values that many tie."""
    generator = np.random.default_rng(seed)
    outcomes = generator.normal(size=(configurations, seeds))
    scores = outcomes + 1.5 * generator.normal(size=(configurations, seeds))
    return (np.round(scores * levels), np.round(outcomes * levels)) if levels else (scores, outcomes)


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=30))
def test_auc_counts_pairs(rows):
    scores, positive = (np.array(column) for column in zip(*rows, strict=True))
    if positive.all() or not positive.any():
        with pytest.raises(ValueError, match="seed number 0 has no pair with different outcomes"):
            ranking.auc(scores, positive)
        return
    (area,) = ranking.auc(scores, positive)
    assert area == pytest.approx(brute(scores, positive), abs=1e-15)
    whitney = scipy_stats.mannwhitneyu(scores[positive], scores[~positive], method="asymptotic").statistic
    assert area == pytest.approx(whitney / (positive.sum() * (~positive).sum()), abs=1e-15)


def test_auc_is_scikit_learns():
    metrics = pytest.importorskip("sklearn.metrics")
    for levels in (None, 1, 3):
        scores, outcomes = grid(1, levels=levels)
        expected = [metrics.roc_auc_score(o > 0, s) for s, o in zip(scores.T, outcomes.T, strict=True)]
        assert ranking.auc(scores, outcomes > 0) == pytest.approx(expected, abs=1e-15)


def test_ties_count_one_half():
    assert ranking.auc([1, 1, 1, 1], [True, False, True, False]) == [0.5]
    assert ranking.auc([1, 1, 0], [True, False, False]) == [0.75]
    assert ranking.concordance([1, 1, 0], [3, 2, 1]) == pytest.approx([2.5 / 3])


def test_each_seed_by_itself():
    scores, outcomes = grid(2, levels=2)
    strata = np.arange(24) % 4
    expected = [brute(s, o, strata) for s, o in zip(scores.T, outcomes.T, strict=True)]
    assert ranking.concordance(scores, outcomes, strata) == pytest.approx(expected, abs=1e-15)
    assert ranking.concordance(scores, outcomes, [f"stratum {i}" for i in strata]) == pytest.approx(expected)
    alone = [ranking.auc(s, o > 0)[0] for s, o in zip(scores.T, outcomes.T, strict=True)]
    assert ranking.auc(scores, outcomes > 0) == pytest.approx(alone, abs=1e-15)


def test_concordance_is_somers_d():
    scores, outcomes = grid(3, seeds=1, levels=1)
    expected = (1 + scipy_stats.somersd(outcomes[:, 0], scores[:, 0]).statistic) / 2
    assert ranking.concordance(scores, outcomes) == pytest.approx([expected], abs=1e-12)


def test_one_diagnostic_for_all_seeds():
    scores, outcomes = grid(4)
    fixed = scores[:, 0]
    assert ranking.auc(fixed, outcomes > 0) == pytest.approx(ranking.auc(np.tile(fixed[:, None], (1, 3)), outcomes > 0))
    assert ranking.auc(scores, outcomes[:, 0] > 0).shape == (3,)


def test_infinite_scores_rank():
    assert ranking.auc([np.inf, 1, -np.inf, np.inf], [True, True, False, False]) == pytest.approx([2.5 / 4])


# 43 patients: albumin, total protein, and ten less the K-G score; whether surgery helped
OVARIAN_TEXT = """3.0 5.8 0 0 3.2 6.3 5 1 3.9 6.8 7 1 2.8 4.8 4 0 3.2 5.8 7 1 0.9 4.0 5 0 2.5 5.7 2 0 1.6 5.6 5 1 3.8 5.7 5 1
    3.7 6.7 4 1 3.2 5.4 6 1 3.8 6.6 4 1 4.1 6.6 5 1 3.6 5.7 5 1 4.3 7.0 6 1 3.6 6.7 6 0 2.3 4.4 4 1 4.2 7.6 6 0
    4.0 6.6 4 0 3.5 5.8 4 1 3.8 6.8 3 1 3.0 4.7 2 0 4.5 7.4 5 1 3.7 7.4 5 1 3.1 6.6 4 1 4.1 8.2 4 1 4.3 7.0 5 1
    4.3 6.5 6 1 3.2 5.1 5 1 2.6 4.7 4 1 3.3 6.8 4 0 1.7 4.0 3 0 3.7 6.1 5 1 3.3 6.3 3 1 4.2 7.7 4 1 3.5 6.2 5 1
    2.9 5.7 1 0 2.1 4.8 3 1 2.8 6.2 2 0 4.0 7.0 3 1 3.3 5.7 4 1 3.7 6.9 5 1 3.6 6.6 5 1"""
OVARIAN = np.array(OVARIAN_TEXT.split(), dtype=float).reshape(-1, 4)


def test_delong_on_the_data_of_its_paper():
    """Areas, standard errors, and the test of all three equal (χ² = 2.534, 2 degrees), to the digits in print."""
    areas, covariance = ranking.delong(OVARIAN[:, [2, 0, 1]], OVARIAN[:, 3])
    assert areas == pytest.approx([0.7258, 0.7366, 0.6478], abs=5e-5)
    assert np.sqrt(np.diag(covariance)) == pytest.approx([0.1028, 0.0927, 0.1000], abs=5e-5)
    contrast = np.array([[1, -1, 0], [1, 0, -1]])
    differences = contrast @ areas
    assert differences @ np.linalg.solve(contrast @ covariance @ contrast.T, differences) == pytest.approx(
        2.534, abs=5e-4
    )


def test_delong_intervals():
    areas, covariance = ranking.delong(OVARIAN[:, :3], OVARIAN[:, 3])
    z, error = 1.959964, np.sqrt(covariance[0, 0])
    albumin = ranking.delong_interval(OVARIAN[:, 0], OVARIAN[:, 3], 0.95, scale="linear")
    assert albumin == pytest.approx((areas[0], areas[0] - z * error, areas[0] + z * error, 1), rel=1e-6)
    albumin = ranking.delong_interval(OVARIAN[:, 0], OVARIAN[:, 3], 0.95)
    half = z * error / (areas[0] * (1 - areas[0]))
    bounds = expit(logit(areas[0]) - half), expit(logit(areas[0]) + half)
    assert albumin == pytest.approx((areas[0], *bounds, 1), rel=1e-6)
    pair = ranking.delong_difference_interval(OVARIAN[:, 0], OVARIAN[:, 1], OVARIAN[:, 3], 0.95)
    half = z * np.sqrt(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
    difference = areas[0] - areas[1]
    assert pair == pytest.approx((difference, difference - half, difference + half, 1), rel=1e-6)
    assert covariance[0, 1] > 0.1 * covariance[0, 0]


def test_hanley_mcneil_computed_tomography():
    """Ratings of 58 normal and 51 abnormal images: the published area is 0.893."""
    scores = np.r_[np.repeat(range(5), [3, 2, 2, 11, 33]), np.repeat(range(5), [33, 6, 6, 11, 2])]
    (area,) = ranking.auc(scores, np.arange(109) < 51)
    assert area == pytest.approx(0.893, abs=5e-4)
    q1, q2 = area / (2 - area), 2 * area**2 / (1 + area)
    variance = (area * (1 - area) + 50 * (q1 - area**2) + 57 * (q2 - area**2)) / (51 * 58)
    assert ranking.hanley_mcneil_error(area, 51, 58) == pytest.approx(np.sqrt(variance), rel=1e-12)


def test_an_area_of_058_from_90_configurations():
    """A standard error of .060 and an interval from .46 to .70: no coin is excluded."""
    assert ranking.hanley_mcneil_error(0.582, 45, 45) == pytest.approx(0.060, abs=5e-4)
    interval = ranking.hanley_mcneil_interval(0.582, 45, 45, 0.95, scale="linear")
    assert interval == pytest.approx((0.582, 0.464, 0.700, 1), abs=5e-4)
    assert ranking.hanley_mcneil_interval(0.582, 45, 45, 0.95).low < 0.5


def test_hanley_mcneil_is_exact_for_exponential_scores():
    """Deviation of 4,000 areas of 12 positives and 20 negatives: known to 1.1 %, so four errors are 4.5 %."""
    generator = np.random.default_rng(5)
    scores = np.concatenate([generator.exponential(3.0, (12, 4000)), generator.exponential(1.0, (20, 4000))])
    areas = ranking.auc(scores, np.arange(32) < 12)
    assert areas.std() == pytest.approx(ranking.hanley_mcneil_error(0.75, 12, 20), rel=0.045)
    assert areas.std() != pytest.approx(ranking.hanley_mcneil_error(0.75, 20, 12), rel=0.045)


def test_linear_bounds_stay_probabilities():
    assert ranking.hanley_mcneil_interval(0.99, 10, 10, scale="linear").high == 1
    assert ranking.hanley_mcneil_interval(0.01, 10, 10, scale="linear").low == 0


def written_out(scores, outcomes, strata, unit, generator, resamples):
    """A cluster bootstrap by indices, one resample at a time: its deviation over resamples."""
    labels = np.unique(strata)
    values = []
    for _ in range(resamples):
        if unit == "strata":
            drawn = [np.flatnonzero(strata == label) for label in generator.choice(labels, labels.size)]
        else:
            members = [np.flatnonzero(strata == label) for label in labels]
            drawn = [generator.choice(inside, inside.size) for inside in members]
        place = np.repeat(np.arange(len(drawn)), [part.size for part in drawn])  # a stratum drawn twice is two strata
        rows = np.concatenate(drawn)
        values.append(np.mean(ranking.concordance(scores[rows], outcomes[rows], place)))
    return np.std(values, ddof=1)


@pytest.mark.parametrize(
    "unit, strata, inflation, degrees",
    [
        ("configurations", np.zeros(24), 24 / 23, 23),
        ("configurations", np.arange(24) % 4, 24 / 20, 20),
        ("strata", np.arange(24) % 4, 4 / 3, 3),
    ],
)
def test_bootstrap_written_out(unit, strata, inflation, degrees):
    """The interval's logit half-width is t · √inflation · deviation, within what two times 4,000 resamples allow."""
    scores, outcomes = grid(6)
    deviation = written_out(scores, outcomes, strata, unit, np.random.default_rng(0), 4000)
    interval = resampling.concordance_interval(
        scores, outcomes, strata, sampled=unit, generator=np.random.default_rng(1), level=0.95, resamples=20000
    )
    value = np.mean([brute(s, o, strata) for s, o in zip(scores.T, outcomes.T, strict=True)])
    assert interval.value == pytest.approx(value)
    assert interval.seeds == 3
    half = scipy_stats.t.ppf(0.975, degrees) * np.sqrt(inflation) * deviation / (value * (1 - value))
    assert logit(interval.high) - logit(value) == pytest.approx(half, rel=0.04)
    assert logit(value) - logit(interval.low) == pytest.approx(half, rel=0.04)


@pytest.mark.parametrize("unit", ["configurations", "strata"])
def test_repeating_a_seed_adds_nothing(unit):
    """Sixteen copies of one seed: a bootstrap of rows would make the interval four times narrower."""
    scores, outcomes = grid(7, seeds=1)
    strata = np.arange(24) % 6
    one, sixteen = (
        resampling.concordance_interval(
            np.tile(scores, copies), np.tile(outcomes, copies), strata, sampled=unit, generator=np.random.default_rng(0)
        )
        for copies in (1, 16)
    )
    assert one[:3] == pytest.approx(sixteen[:3], abs=1e-12)
    assert (one.seeds, sixteen.seeds) == (1, 16)


def test_copies_of_a_configuration_are_resampled_together_as_a_stratum():
    """Repeating every configuration must not narrow an interval over strata either."""
    scores, outcomes = grid(8, seeds=2)
    strata = np.arange(24) % 6
    one, four = (
        resampling.concordance_interval(
            *(np.repeat(a, n, axis=0) for a in (scores, outcomes, strata)),
            sampled="strata",
            generator=np.random.default_rng(0),
        )
        for n in (1, 4)
    )
    assert one == pytest.approx(four, abs=1e-12)


def test_bootstrap_agrees_with_delong():
    """Two ways to one standard error: they differ by little at 45 + 45."""
    scores, outcomes = grid(9, configurations=90, seeds=1)
    others = scores + np.random.default_rng(0).normal(size=scores.shape)
    how = {"sampled": "configurations", "generator": np.random.default_rng(1), "level": 0.95, "resamples": 8000}
    ours = resampling.auc_interval(scores, outcomes > 0, **how)
    theirs = ranking.delong_interval(scores[:, 0], outcomes[:, 0] > 0, 0.95)
    assert ours.value == pytest.approx(theirs.value)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.006)
    ours = resampling.auc_difference_interval(scores, others, outcomes > 0, **how)
    theirs = ranking.delong_difference_interval(scores[:, 0], others[:, 0], outcomes[:, 0] > 0, 0.95)
    assert ours.value == pytest.approx(theirs.value)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.006)


def logit_error(interval, degrees, level=0.99):
    return (logit(interval.high) - logit(interval.value)) / scipy_stats.t.ppf(0.5 + level / 2, degrees)


def test_seeds_alone_need_no_resampling():
    scores, outcomes = grid(10, seeds=5)
    areas = ranking.auc(scores, outcomes > 0)
    interval = resampling.auc_interval(scores, outcomes > 0, sampled="seeds", generator=np.random.default_rng(0))
    plain = stats.mean_interval(areas)
    assert interval.value == pytest.approx(plain.value)
    slope = plain.value * (1 - plain.value)
    assert logit_error(interval, 4) * slope == pytest.approx(areas.std(ddof=1) / np.sqrt(5))


@pytest.mark.parametrize("unit, free", [("configurations", 20), ("strata", 3)])
def test_variances_of_two_kinds_add_up(unit, free):
    """The two-way interval, put together from the two one-way intervals, with Satterthwaite's degrees of freedom."""
    scores, outcomes = grid(11, seeds=5)
    strata = np.arange(24) % 4
    both, first, second = (
        resampling.concordance_interval(scores, outcomes, strata, sampled=sampled, generator=np.random.default_rng(3))
        for sampled in (f"{unit} and seeds", unit, "seeds")
    )
    a, b = logit_error(first, free) ** 2, logit_error(second, 4) ** 2
    degrees = (a + b) ** 2 / (a**2 / free + b**2 / 4)
    assert logit_error(both, degrees) ** 2 == pytest.approx(a + b)


def test_differences_are_paired():
    """A diagnostic against itself differs by nothing; against another, by the same with the sign turned."""
    scores, outcomes = grid(12)
    others = grid(13)[0]
    how = lambda: {"sampled": "configurations and seeds", "generator": np.random.default_rng(0)}
    itself = resampling.concordance_difference_interval(scores, scores, outcomes, **how())
    assert itself == (0, 0, 0, 3)
    there = resampling.concordance_difference_interval(scores, others, outcomes, **how())
    back = resampling.concordance_difference_interval(others, scores, outcomes, **how())
    assert there[:3] == pytest.approx((-back.value, -back.high, -back.low))
    expected = (ranking.concordance(scores, outcomes) - ranking.concordance(others, outcomes)).mean()
    assert there.value == pytest.approx(expected)
    assert there.value - there.low == pytest.approx(there.high - there.value)
    near = scores + 1e-3 * others  # nearly the same ranks: a tiny interval only where the pairing is used
    close = resampling.concordance_difference_interval(scores, near, outcomes, **how())
    assert close.high - close.low < 0.1 * (there.high - there.low)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    "sampled, strata, trials",
    [
        ("configurations", None, 6),  # 6 + 18: six pairs without a configuration in common
        ("configurations", np.arange(24) % 2, 6),
        ("strata", np.arange(24) % 3, 3),
        ("seeds", None, 5),
        ("configurations and seeds", None, 5),
        ("strata and seeds", np.arange(24) % 3, 3),
    ],
)
def test_perfect_agreement_is_not_certainty(sampled, strata, trials, sign):
    outcomes = np.tile((np.arange(24) < 6)[:, None], (1, 5))
    found = resampling.concordance_interval(
        sign * outcomes, outcomes, strata, sampled=sampled, generator=np.random.default_rng(0), level=0.95
    )
    expected = stats.proportion_interval([sign == 1] * trials, 0.95)
    assert found == pytest.approx((expected.value, expected.low, expected.high, 5))


def test_perfect_agreement_under_one_seed():
    expected = stats.proportion_interval([True] * 6)
    labels = np.arange(24) < 6
    assert ranking.delong_interval(labels.astype(float), labels)[:3] == pytest.approx(expected[:3])
    assert ranking.hanley_mcneil_interval(1.0, 6, 18)[:3] == pytest.approx(expected[:3])
    pairs = stats.proportion_interval([True] * 12)  # 24 different outcomes make 12 pairs with none in common
    rising = np.arange(24.0)
    found = resampling.concordance_interval(
        rising, rising, sampled="configurations", generator=np.random.default_rng(0)
    )
    assert found[:3] == pytest.approx(pairs[:3])


def test_only_the_generator_is_drawn_from():
    scores, outcomes = grid(14)
    before = np.random.get_state()[1].copy()
    draw = lambda seed: resampling.auc_interval(
        scores, outcomes > 0, sampled="configurations", generator=np.random.default_rng(seed), resamples=100
    )
    assert draw(0) == draw(0) != draw(1)
    assert (np.random.get_state()[1] == before).all()
    generator = np.random.default_rng(0)
    how = {"sampled": "configurations", "generator": generator, "resamples": 100}
    assert resampling.auc_interval(scores, outcomes > 0, **how) != resampling.auc_interval(scores, outcomes > 0, **how)


def test_inputs_are_left_alone():
    scores, outcomes = grid(15)
    copies = scores.copy(), outcomes.copy()
    resampling.concordance_interval(scores, outcomes, sampled="configurations", generator=np.random.default_rng(0))
    assert (scores == copies[0]).all() and (outcomes == copies[1]).all()


@pytest.mark.parametrize(
    "scores, outcomes, strata, message",
    [
        ([1, np.nan], [0, 1], None, "NaN and has no rank"),
        ([1, 2], [0, np.nan], None, "NaN and has no rank"),
        ([1, 2, 3], [0, 1], None, r"shapes \(3,\), \(2,\) do not match"),
        (np.ones((3, 2)), np.ones((3, 4)), None, r"\(3, 2\), \(3, 4\) do not match"),
        (np.ones((3, 2, 1)), np.ones((3, 2)), None, "do not match"),
        (1.0, 2.0, None, "do not match"),
        ([1, 2], [3, 3], None, "seed number 0 has no pair"),
        ([[1, 1], [2, 2]], [[0, 1], [1, 1]], None, "seed number 1 has no pair"),
        ([1, 2], [1, 2], [0, 1], "seed number 0 has no pair"),
        ([1, 2], [1, 2], [0, 1, 1], "one label for each of 2 configurations"),
    ],
)
def test_bad_grids(scores, outcomes, strata, message):
    with pytest.raises(ValueError, match=message):
        ranking.concordance(scores, outcomes, strata)


HOW = {"sampled": "configurations", "generator": np.random.default_rng(0)}


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: ranking.auc([1, 2], [0.3, 1]), "compare the outcome with a threshold"),
        (lambda: ranking.delong([[1, 2], [3, 4]], [[0, 1], [1, 0]]), "at least two of each label"),
        (lambda: ranking.delong([1, 2, 3], [0, 1, 1]), "at least two of each label"),
        (lambda: ranking.delong_interval(np.ones((4, 2)), [0, 1, 1, 0]), "of one seed"),
        (lambda: ranking.delong_difference_interval([1, 2, 3, 4], [1, 2, 3], [0, 1, 1, 0]), "to both, of one seed"),
        (lambda: ranking.delong_interval([1, 2, 3, 4], [0, 1, 1, 0], level=95), "level = 95"),
        (lambda: ranking.delong_difference_interval([1, 2], [1, 2], [0, 1], level=0), "level = 0"),
        (lambda: ranking.hanley_mcneil_interval(0.6, 9, 9, scale="log"), "scale = 'log'"),
        (lambda: ranking.hanley_mcneil_interval(0.6, 9, 9, level=1), "level = 1"),
        (lambda: ranking.hanley_mcneil_error(1.2, 9, 9), "area = 1.2"),
        (lambda: ranking.hanley_mcneil_error(0.6, 0, 9), "positives = 0"),
        (lambda: resampling.auc_interval([1, 2], [0, 1], **HOW | {"sampled": "rows"}), "sampled = 'rows'"),
        (lambda: resampling.auc_interval([1, 2], [0, 1], **HOW | {"sampled": "seeds"}), "one seed tells nothing"),
        (lambda: resampling.auc_interval([1, 2], [0, 1], **HOW | {"sampled": "strata"}), "nothing to resample"),
        (lambda: resampling.auc_interval([1, 2], [0, 1], **HOW), "over 5 % of resamples"),
        (lambda: resampling.auc_interval([1, 2], [0, 1], level=2, **HOW), "level = 2"),
        (lambda: resampling.auc_interval([1, 2], [0, 1], resamples=99, **HOW), "resamples = 99"),
        (lambda: resampling.auc_difference_interval([1, 2], [1, 2], [0, 1], level=2, **HOW), "level = 2"),
        (lambda: resampling.auc_difference_interval([1, 2], [1], [0, 1], **HOW), "do not match"),
    ],
)
def test_bad_calls(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("generator", [0, None, np.random, np.random.RandomState(0)])
def test_a_bootstrap_takes_a_generator(generator):
    with pytest.raises(TypeError, match="numpy.random.Generator"):
        resampling.auc_interval([1, 2, 3], [0, 1, 1], sampled="configurations", generator=generator)


SLOW = ["AUC, configurations, 6 seeds", "AUC, configurations and seeds", "matched pairs, strata"]


@pytest.mark.parametrize("name", SLOW)
def test_short_form_of_coverage(name):
    """Coverage of 90 % intervals over 150 data sets; Monte Carlo error 0.024, and four of them are allowed.

    A bootstrap of single runs, blind to what a configuration keeps over its seeds, covers two thirds in the first.
    """
    found = cover(name, 0.9, 150)
    assert found.passes(DESIGNS[name], 0.9), found
