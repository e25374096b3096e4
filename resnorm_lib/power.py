"""How many seeds, or configurations, a comparison needs, and what so many of them can find."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import stats as scipy_stats

from resnorm_lib.ranking import hanley_mcneil_error

__all__ = ["configurations_needed", "paired_power", "seeds_needed", "unpaired_power"]


def _t_power(noncentrality: float, degrees: int, significance: float) -> float:
    critical = scipy_stats.t.isf(significance / 2, degrees)
    # scipy's lower tail of the non-central t can be lost to rounding where it is tiny; then it counts as zero.
    lower = np.nan_to_num(scipy_stats.nct.cdf(-critical, degrees, noncentrality))
    return float(min(1.0, scipy_stats.nct.sf(critical, degrees, noncentrality) + lower))


def _check_power(effect: float, deviation: float, significance: float) -> None:
    if not (np.isfinite(effect) and effect != 0 and np.isfinite(deviation) and deviation > 0):
        raise ValueError(
            f"effect = {effect}, deviation = {deviation}: give an effect that is not zero and a deviation above zero"
        )
    if not 0 < significance < 1:
        raise ValueError(f"significance = {significance} is not allowed: give a probability between 0 and 1")


def _fewest(enough: Callable[[int], bool], message: str) -> int:
    """The smallest n from 2 on that is enough, where every larger one is as well."""
    low, high = 1, 2
    while not enough(high):
        low, high = high, 2 * high
        if high > 10**6:
            raise ValueError(message)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def paired_power(effect: float, deviation: float, seeds: int, significance: float = 0.05) -> float:
    """Probability that a two-sided paired t test over seeds finds the effect.

    The test statistic is non-central t with n - 1 degrees of freedom and non-centrality effect · √n/deviation.

    Args:
        effect: true mean difference.
        deviation: standard deviation over seeds of the differences within each pair.
        seeds: n, in both arms the same.
        significance: level of the test.

    Raises:
        ValueError: fewer than two seeds, no effect, or a deviation or a significance that is not allowed.
    """
    _check_power(effect, deviation, significance)
    if seeds < 2:
        raise ValueError(f"seeds = {seeds} is not allowed: a deviation needs at least 2")
    return _t_power(abs(effect) / deviation * np.sqrt(seeds), seeds - 1, significance)


def unpaired_power(effect: float, deviation: float, seeds: int, significance: float = 0.05) -> float:
    """Probability that a two-sided t test of two separate groups of seeds finds the effect.

    The test statistic is non-central t with 2n - 2 degrees of freedom and non-centrality effect · √(n/2)/deviation.

    Args:
        effect: true difference of the means.
        deviation: standard deviation over seeds within an arm, the same in both.
        seeds: n, in each arm.
        significance: level of the test.

    Raises:
        ValueError: as `paired_power`.
    """
    _check_power(effect, deviation, significance)
    if seeds < 2:
        raise ValueError(f"seeds = {seeds} is not allowed: a deviation needs at least 2 in each arm")
    return _t_power(abs(effect) / deviation * np.sqrt(seeds / 2), 2 * seeds - 2, significance)


def seeds_needed(
    effect: float, deviation: float, *, paired: bool, power: float = 0.8, significance: float = 0.05
) -> int:
    """How many seeds (in each arm) a comparison needs: the fewest whose test has the wanted power.

    Args:
        effect: true mean difference that must be found.
        deviation: over seeds; of the differences where ``paired``, within one arm otherwise.
        paired: whether the arms share their seeds.
        power: wanted probability of finding the effect.
        significance: level of the two-sided t test.

    Raises:
        ValueError: as `paired_power`, a power that is not above ``significance`` and below 1, or more than 10⁶ seeds.
    """
    _check_power(effect, deviation, significance)
    if not significance < power < 1:
        raise ValueError(f"power = {power} is not allowed: give a probability above the significance {significance}")
    attained = paired_power if paired else unpaired_power
    return _fewest(
        lambda seeds: attained(effect, deviation, seeds, significance) >= power,
        f"effect = {effect} is too small beside deviation = {deviation}: over 10⁶ seeds needed",
    )


def configurations_needed(
    area: float, against: float = 0.5, *, power: float = 0.8, significance: float = 0.05, positive_share: float = 0.5
) -> int:
    """How many independent configurations tell an AUC from a fixed other value.

    The fewest n with z(significance/2) · SE₀ + z(1 - power) · SE₁ ≤ |area - against|, where SE₀ and SE₁ are
    `hanley_mcneil_error` at ``against`` and at ``area`` (normal approximation). More seeds of the same grid do not
    stand in for configurations.

    Args:
        area: the true AUC.
        against: the AUC that is to be excluded.
        power: wanted probability of excluding it.
        significance: level of the two-sided test.
        positive_share: share of configurations that are positive.

    Raises:
        ValueError: equal areas, a number outside 0 to 1, or more than 10⁶ configurations.

    Source: the sample-size reasoning of Hanley and McNeil 1982 (Radiology 143, 29), for one curve.
    """
    if not (0 < area < 1 and 0 < against < 1 and area != against):
        raise ValueError(f"area = {area}, against = {against}: give two different numbers between 0 and 1")
    if not 0 < positive_share < 1:
        raise ValueError(f"positive_share = {positive_share} is not allowed: give a number between 0 and 1")
    if not 0 < significance < power < 1:
        raise ValueError(f"power = {power}, significance = {significance}: give 0 < significance < power < 1")
    critical, wanted = scipy_stats.norm.isf([significance / 2, 1 - power])

    def enough(configurations: int) -> bool:
        positives = min(max(round(positive_share * configurations), 1), configurations - 1)
        null, real = (hanley_mcneil_error(a, positives, configurations - positives) for a in (against, area))
        return bool(critical * null + wanted * real <= abs(area - against))

    return _fewest(enough, f"area = {area} is too near {against}: over 10⁶ configurations needed")
