"""How well a diagnostic ranks configurations: concordance and AUC, and what is known of an AUC under one seed.

A grid has shape ``(configurations, seeds)``: the diagnostic and the outcome of each configuration under each seed,
the seed shared by all configurations. ``(configurations,)`` is one seed, or for a diagnostic or a label that no seed
changes, the same for all. Scores may be infinite (they rank), but not NaN. Higher scores predict higher outcomes.
Ties of scores count one half.

Intervals for several seeds, for strata and for paired grids are in `resnorm_lib.resampling`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats as scipy_stats
from scipy.special import expit, logit

from resnorm_lib.stats import Interval, check_level

__all__ = [
    "auc",
    "concordance",
    "delong",
    "delong_difference_interval",
    "delong_interval",
    "hanley_mcneil_error",
    "hanley_mcneil_interval",
]


class Pairs(NamedTuple):
    """For each seed, which ordered pairs (better, worse) count, and how far the scores agree: (seeds, C, C)."""

    agreement: np.ndarray
    counted: np.ndarray

    def share(self, weights: np.ndarray) -> np.ndarray:
        """Agreement over pairs, each weighted by both configurations' weights: (resamples, C) to (resamples, seeds)."""
        agreeing, counting = (np.array([((weights @ m) * weights).sum(-1) for m in part]).T for part in self)
        shares: np.ndarray = np.divide(agreeing, counting, out=np.full(counting.shape, np.nan), where=counting > 0)
        return shares


def grids_of(*arrays: ArrayLike) -> list[np.ndarray]:
    """The same grids as (configurations, seeds), checked."""
    grids = [np.asarray(array, dtype=np.float64) for array in arrays]
    grids = [grid[:, None] if grid.ndim == 1 else grid for grid in grids]
    seeds = max((grid.shape[1] for grid in grids if grid.ndim == 2), default=0)
    if any(grid.ndim != 2 or grid.shape[1] not in (1, seeds) or len(grid) != len(grids[0]) for grid in grids):
        shapes = ", ".join(str(np.shape(array)) for array in arrays)
        raise ValueError(f"shapes {shapes} do not match: give (configurations, seeds), or (configurations,), to all")
    if any(np.isnan(grid).any() for grid in grids):
        raise ValueError(
            "a score or an outcome is NaN and has no rank: give a diverged run inf or -inf, or leave it out"
        )
    return [np.broadcast_to(grid, (len(grid), seeds)) for grid in grids]


def stratum_numbers(strata: ArrayLike | None, configurations: int) -> np.ndarray:
    """The number of each configuration's stratum."""
    if strata is None:
        return np.zeros(configurations, dtype=np.intp)
    labels = np.asarray(strata)
    if labels.shape != (configurations,):
        raise ValueError(f"strata has shape {labels.shape}: give one label for each of {configurations} configurations")
    numbers: np.ndarray = np.unique(labels, return_inverse=True)[1]
    return numbers


def pairs_of(scores: ArrayLike, outcomes: ArrayLike, strata: ArrayLike | None) -> Pairs:
    """Every ordered pair within a stratum whose first outcome is the higher one."""
    score, outcome = (grid.T for grid in grids_of(scores, outcomes))
    label = stratum_numbers(strata, score.shape[1])
    counted = (outcome[:, :, None] > outcome[:, None]) & (label[:, None] == label)
    empty = np.flatnonzero(~counted.any((1, 2)))
    if empty.size:
        raise ValueError(f"seed number {empty[0]} has no pair with different outcomes: there is nothing to rank")
    agreement = counted * ((score[:, :, None] > score[:, None]) + 0.5 * (score[:, :, None] == score[:, None]))
    return Pairs(agreement, counted.astype(np.float64))


def as_labels(positive: ArrayLike) -> np.ndarray:
    """Booleans as zeros and ones; anything else is refused."""
    labels = np.asarray(positive)
    if not np.isin(labels, (0, 1)).all():
        raise ValueError(
            "positive holds something other than true and false: compare the outcome with a threshold first"
        )
    return labels.astype(np.float64)


def concordance(scores: ArrayLike, outcomes: ArrayLike, strata: ArrayLike | None = None) -> np.ndarray:
    """Share of matched pairs that the scores order as the outcomes do, for each seed.

    Over the pairs within a stratum whose outcomes differ: 1 where the higher score has the higher outcome, one half
    where the scores tie. It is (1 + D)/2 with Somers' D of scores given outcomes.

    Args:
        scores, outcomes: ``(configurations, seeds)``.
        strata: ``(configurations,)`` labels; pairs are matched within a label. ``None`` for all pairs.

    Returns:
        ``(seeds,)``.

    Raises:
        ValueError: other shapes, a NaN, or a seed without a pair to rank.

    Source: Somers 1962, as in `scipy.stats.somersd`.
    """
    pairs = pairs_of(scores, outcomes, strata)
    shares: np.ndarray = pairs.share(np.ones((1, pairs.counted.shape[1])))[0]
    return shares


def auc(scores: ArrayLike, positive: ArrayLike) -> np.ndarray:
    """Area under the ROC curve for each seed: P(score of a positive > of a negative) + P(tie)/2.

    Args:
        scores, positive: ``(configurations, seeds)``; the labels are booleans.

    Returns:
        ``(seeds,)``. For these very configurations and other seeds, `stats.mean_interval` of it is the interval.

    Raises:
        ValueError: as `concordance`, or a label that is neither true nor false.
    """
    return concordance(scores, as_labels(positive))


def area_bounds(
    area: float, error: float, quantile: float, units: int, level: float, scale: str
) -> tuple[float, float]:
    """Bounds of a probability: symmetric in its logit, or (as first published) in itself and cut to 0 and 1."""
    if scale not in ("logit", "linear"):
        raise ValueError(f"scale = {scale!r} is not allowed: use 'logit' or 'linear'")
    if area in (0.0, 1.0):  # every pair agrees, and so do all that are independent: no spread to read
        low, high = scipy_stats.binomtest(round(area) * units, units).proportion_ci(level)
    elif scale == "linear":
        low, high = max(0.0, area - quantile * error), min(1.0, area + quantile * error)
    else:
        middle, half = logit(area), quantile * error / (area * (1 - area))
        low, high = expit(middle - half), expit(middle + half)
    return float(low), float(high)


def hanley_mcneil_error(area: float, positives: int, negatives: int) -> float:
    """Standard error of an AUC from its value and the two counts alone.

    SE² = [A(1 - A) + (n₁ - 1)(Q₁ - A²) + (n₀ - 1)(Q₂ - A²)]/(n₁ n₀), Q₁ = A/(2 - A), Q₂ = 2A²/(1 + A):
    exact for exponential scores, a fair guess for others.

    Args:
        area: A, between 0 and 1.
        positives, negatives: n₁ and n₀, independent configurations of each label, under one seed.

    Raises:
        ValueError: an area outside 0 to 1, or no configuration of a label.

    Source: Hanley and McNeil 1982 (Radiology 143, 29).
    """
    if not 0 <= area <= 1:
        raise ValueError(f"area = {area} is not allowed: an AUC is between 0 and 1")
    if positives < 1 or negatives < 1:
        raise ValueError(f"positives = {positives}, negatives = {negatives}: give at least 1 of each")
    first, second = area / (2 - area) - area**2, 2 * area**2 / (1 + area) - area**2
    variance = area * (1 - area) + (positives - 1) * first + (negatives - 1) * second
    return float(np.sqrt(variance / (positives * negatives)))


def hanley_mcneil_interval(
    area: float, positives: int, negatives: int, level: float = 0.99, scale: Literal["logit", "linear"] = "logit"
) -> Interval:
    """Interval of an AUC under one seed, from its value and the two counts alone: for areas that others report.

    Args:
        area, positives, negatives: as `hanley_mcneil_error`.
        level: coverage of the interval.
        scale: bounds symmetric in the ``"logit"``, or ``"linear"``: area ± z · SE, as published.

    Raises:
        ValueError: as `hanley_mcneil_error`, or another scale.
    """
    check_level(level)
    error, quantile = hanley_mcneil_error(area, positives, negatives), float(scipy_stats.norm.ppf(0.5 + level / 2))
    return Interval(area, *area_bounds(area, error, quantile, min(positives, negatives), level, scale), 1)


def delong(scores: ArrayLike, positive: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """AUCs of several diagnostics of the same configurations, with their covariance.

    With V₁ the share of negatives that each positive outranks, and V₀ the share of positives that each negative is
    outranked by: covariance = cov(V₁)/n₁ + cov(V₀)/n₀, unbiased covariances over configurations.

    Args:
        scores: ``(configurations, diagnostics)``, all from one seed: more seeds of a configuration are no further
            configurations (use `auc_interval`).
        positive: ``(configurations,)``.

    Returns:
        areas ``(diagnostics,)`` and covariance ``(diagnostics, diagnostics)``.

    Raises:
        ValueError: as `auc`, labels of another shape, or fewer than two configurations of a label.

    Source: DeLong, DeLong and Clarke-Pearson 1988 (Biometrics 44, 837).
    """
    labels = as_labels(positive)
    if labels.ndim != 1 or min((labels == 1).sum(), (labels == 0).sum()) < 2:
        raise ValueError(f"positive has shape {labels.shape}: give (configurations,), at least two of each label")
    agreement = pairs_of(scores, labels, None).agreement[:, labels == 1][:, :, labels == 0]
    parts = [np.atleast_2d(np.cov(agreement.mean(axis))) / agreement.shape[3 - axis] for axis in (1, 2)]
    return agreement.mean((1, 2)), parts[0] + parts[1]


def delong_interval(
    scores: ArrayLike, positive: ArrayLike, level: float = 0.99, scale: Literal["logit", "linear"] = "logit"
) -> Interval:
    """AUC under one seed with DeLong's interval over configurations.

    Args:
        scores, positive: ``(configurations,)``, one seed.
        level: coverage of the interval.
        scale: bounds symmetric in the ``"logit"``, or ``"linear"``: area ± z · SE, as published.

    Raises:
        ValueError: as `delong`, or another scale.
    """
    check_level(level)
    if np.ndim(scores) != 1:
        raise ValueError(f"scores has shape {np.shape(scores)}: give (configurations,), of one seed")
    areas, covariance = delong(scores, positive)
    labels, quantile = as_labels(positive), float(scipy_stats.norm.ppf(0.5 + level / 2))
    units = int(min(labels.sum(), (1 - labels).sum()))
    area, error = float(areas[0]), float(np.sqrt(covariance[0, 0]))
    return Interval(area, *area_bounds(area, error, quantile, units, level, scale), 1)


def delong_difference_interval(
    scores: ArrayLike, others: ArrayLike, positive: ArrayLike, level: float = 0.99
) -> Interval:
    """AUC of ``scores`` less that of ``others`` on the same configurations, under one seed: DeLong's paired interval.

    Difference ± z · √(var + var' - 2 cov). It leaves zero out just where DeLong's test rejects equal areas.

    Args:
        scores, others, positive: ``(configurations,)``, one seed.
        level: coverage of the interval.

    Raises:
        ValueError: as `delong`.
    """
    check_level(level)
    if np.ndim(scores) != 1 or np.shape(scores) != np.shape(others):
        raise ValueError(
            f"shapes {np.shape(scores)} and {np.shape(others)}: give (configurations,) to both, of one seed"
        )
    areas, covariance = delong(np.stack([np.asarray(scores), np.asarray(others)], axis=1), positive)
    contrast = np.array([1.0, -1.0])
    half = float(scipy_stats.norm.ppf(0.5 + level / 2) * np.sqrt(contrast @ covariance @ contrast))
    value = float(contrast @ areas)
    return Interval(value, value - half, value + half, 1)
