"""Statistics of repeated runs.

The unit of replication is the seed, and every signature says where it stands: ``…_by_seed`` has shape ``(seeds,)``
or ``(seeds, …)``, and a grid has shape ``(configurations, seeds)``. What ranks configurations is in
`resnorm_lib.ranking`; how many seeds a comparison needs is in `resnorm_lib.power`. Numbers are read as float64. Bounds cover with the probability ``level``, 99 % unless said.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats as scipy_stats

__all__ = [
    "Fit",
    "Interval",
    "exponential_fit",
    "geometric_mean_interval",
    "grid_mean_interval",
    "mean_interval",
    "paired_difference_interval",
    "power_law_fit",
    "proportion_interval",
    "span",
]


class Interval(NamedTuple):
    """A value between two bounds, from so many independent seeds."""

    value: float
    low: float
    high: float
    seeds: int


def _seeds(samples: ArrayLike, least: int) -> np.ndarray:
    array = np.asarray(samples, dtype=np.float64)
    if array.ndim != 1 or array.size < least:
        raise ValueError(f"samples has shape {array.shape}: give one number for each seed, at least {least}")
    if not np.isfinite(array).all():
        raise ValueError("samples holds a number that is not finite: count diverged runs apart, do not average them")
    return array


def check_level(level: float) -> None:
    """Refuse a coverage that is no probability between zero and one.

    Raises:
        ValueError: ``level`` is not above 0 and below 1.
    """
    if not 0 < level < 1:
        raise ValueError(f"level = {level} is not allowed: give a probability between 0 and 1, such as 0.99")


def mean_interval(samples: ArrayLike, level: float = 0.99) -> Interval:
    """Mean over seeds with Student's t interval: mean ± t · sd/√n, n - 1 degrees of freedom.

    Args:
        samples: ``(seeds,)``; for a paired comparison, the differences within each pair.
        level: coverage of the interval.

    Raises:
        ValueError: fewer than two seeds, another shape, or a number that is not finite.
    """
    check_level(level)
    array = _seeds(samples, 2)
    half = float(scipy_stats.t.ppf(0.5 + level / 2, array.size - 1) * array.std(ddof=1) / np.sqrt(array.size))
    mean = float(array.mean())
    return Interval(mean, mean - half, mean + half, array.size)


def geometric_mean_interval(samples: ArrayLike, level: float = 0.99) -> Interval:
    """Geometric mean over seeds, with `mean_interval` of the logarithms: for ratios.

    Args:
        samples: ``(seeds,)``, positive.
        level: coverage of the interval.

    Raises:
        ValueError: as `mean_interval`, or a number that is not positive.
    """
    array = np.asarray(samples, dtype=np.float64)
    if (array <= 0).any():
        raise ValueError("samples holds a number that is not positive: it has no logarithm")
    value, low, high, seeds = mean_interval(np.log(array), level)
    return Interval(float(np.exp(value)), float(np.exp(low)), float(np.exp(high)), seeds)


def span(samples: ArrayLike) -> Interval:
    """The worst (largest) value over seeds, with the smallest and the largest as bounds: for exact claims.

    Args:
        samples: ``(seeds,)``.

    Raises:
        ValueError: no seed, another shape, or a number that is not finite.
    """
    array = _seeds(samples, 1)
    return Interval(float(array.max()), float(array.min()), float(array.max()), array.size)


def paired_difference_interval(first_by_seed: ArrayLike, second_by_seed: ArrayLike, level: float = 0.99) -> Interval:
    """Mean of first minus second over seeds that both share, with `mean_interval` of the differences.

    Two arms that share a seed's initialisation and data differ by less than two that do not, so the interval is
    narrower than one from two separate means.

    Args:
        first_by_seed, second_by_seed: ``(seeds,)``, entry i of both from the same seed.
        level: coverage of the interval.

    Raises:
        ValueError: as `mean_interval`, or arms of different numbers of seeds.
    """
    first, second = _seeds(first_by_seed, 2), _seeds(second_by_seed, 2)
    if first.size != second.size:
        raise ValueError(f"{first.size} seeds against {second.size}: a paired difference needs the same seeds in both")
    return mean_interval(first - second, level)


def proportion_interval(
    successes_by_seed: ArrayLike, level: float = 0.99, method: Literal["exact", "wilson"] = "exact"
) -> Interval:
    """Share of seeds that succeed, with a binomial interval.

    ``exact`` is Clopper and Pearson's: it covers at least ``level`` whatever the true share, and is therefore wide.
    ``wilson`` inverts the score test: it covers about ``level`` on average over shares, less than that for some.

    Args:
        successes_by_seed: ``(seeds,)`` of booleans. Repeats within a seed are no seeds: give `mean_interval` each
            seed's own share instead.
        level: coverage of the interval.
        method: which of the two.

    Raises:
        ValueError: no seed, another shape, something other than true or false, or another method.

    Source: `scipy.stats.binomtest`; Brown, Cai and DasGupta 2001 compare these intervals (Statist. Sci. 16, 101).
    """
    check_level(level)
    if method not in ("exact", "wilson"):
        raise ValueError(f"method = {method!r} is not allowed: use 'exact' or 'wilson'")
    array = _seeds(successes_by_seed, 1)
    if not np.isin(array, (0, 1)).all():
        raise ValueError("successes_by_seed holds something other than true and false: give one boolean for each seed")
    result = scipy_stats.binomtest(int(array.sum()), array.size)
    low, high = result.proportion_ci(level, method)
    return Interval(float(array.mean()), float(low), float(high), array.size)


def grid_mean_interval(values: ArrayLike, level: float = 0.99) -> Interval:
    """Mean over a grid of configurations × seeds, both taken as samples of more of their kind.

    With the mean squares of the two-way layout, the variance of the mean is (MS_c + MS_s - MS_e)/(C S), here not
    less than either of the first two terms alone; Student's t has Satterthwaite's degrees of freedom.
    For the very configurations of the grid and no others, use `mean_interval` of ``values.mean(0)``.

    Args:
        values: ``(configurations, seeds)``, each seed shared by all configurations.
        level: coverage of the interval.

    Raises:
        ValueError: fewer than two configurations or seeds, another shape, or a number that is not finite.
    """
    check_level(level)
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or min(array.shape) < 2:
        raise ValueError(f"values has shape {array.shape}: give (configurations, seeds), at least two of each")
    if not np.isfinite(array).all():
        raise ValueError("values holds a number that is not finite: count diverged runs apart, do not average them")
    configurations, seeds = array.shape
    by_configuration, by_seed = array.mean(1), array.mean(0)
    rest = array - by_configuration[:, None] - by_seed + array.mean()
    degrees = np.array([configurations - 1, seeds - 1, (configurations - 1) * (seeds - 1)])
    squares = np.array([seeds * by_configuration.var(ddof=1), configurations * by_seed.var(ddof=1), 0.0])
    squares[2] = (rest**2).sum() / degrees[2]
    mean, total = float(array.mean()), max(squares[0] + squares[1] - squares[2], *squares[:2])
    if total == 0:
        return Interval(mean, mean, mean, seeds)
    effective = total**2 / (squares**2 / degrees).sum()
    half = float(scipy_stats.t.ppf(0.5 + level / 2, effective) * np.sqrt(total / array.size))
    return Interval(mean, mean - half, mean + half, seeds)


class Fit(NamedTuple):
    """A straight line in the logarithm of the values, fitted to each seed by itself.

    Attributes:
        slope: the exponent of a power law, or the rate of an exponential, over seeds.
        prefactor: the value at x = 1, or at x = 0; geometric mean over seeds.
        r_squared: share of the variance of the seeds' mean curve (of logarithms) that the line explains. Near one
            does not prove the law: compare with that of the other fit, and look at the residuals.
    """

    slope: Interval
    prefactor: Interval
    r_squared: float


def _fit(x: np.ndarray, values_by_seed: ArrayLike, level: float) -> Fit:
    values = np.asarray(values_by_seed, dtype=np.float64)
    if values.ndim != 2 or len(values) < 2 or values.shape[1:] != x.shape or x.size < 3:
        raise ValueError(
            f"values_by_seed has shape {values.shape} for {x.size} points: give (seeds, points), at least two and three"
        )
    if not (np.isfinite(values) & (values > 0)).all():
        raise ValueError("values_by_seed holds a number that is not positive and finite: it has no logarithm")
    if not np.isfinite(x).all() or np.unique(x).size < 3:
        raise ValueError("fewer than three different finite points: a line would fit any values")
    logarithms = np.log(values)
    lines = [scipy_stats.linregress(x, row) for row in logarithms]
    slope = mean_interval([line.slope for line in lines], level)
    prefactor = geometric_mean_interval(np.exp([line.intercept for line in lines]), level)
    return Fit(slope, prefactor, float(scipy_stats.linregress(x, logarithms.mean(0)).rvalue ** 2))


def power_law_fit(sizes: ArrayLike, values_by_seed: ArrayLike, level: float = 0.99) -> Fit:
    """Fit value = prefactor · size^slope: least squares of log value on log size, one line for each seed.

    Points of one seed share its draws, so a line's own standard error is not used: the interval is
    `mean_interval` over the seeds' slopes (and `geometric_mean_interval` over their prefactors).

    Args:
        sizes: ``(points,)``, positive, at least three different ones.
        values_by_seed: ``(seeds, points)``, positive.
        level: coverage of each interval.

    Raises:
        ValueError: other shapes, fewer than two seeds, or a number without logarithm.
    """
    sizes = np.asarray(sizes, dtype=np.float64)
    if sizes.ndim != 1 or (sizes <= 0).any():
        raise ValueError("sizes must be one row of positive numbers: a power law has no other")
    return _fit(np.log(sizes), values_by_seed, level)


def exponential_fit(positions: ArrayLike, values_by_seed: ArrayLike, level: float = 0.99) -> Fit:
    """Fit value = prefactor · exp(slope · position), as `power_law_fit` but linear in the position.

    Args:
        positions: ``(points,)``, at least three different ones; the slope is per unit of these.
        values_by_seed: ``(seeds, points)``, positive.
        level: coverage of each interval.

    Raises:
        ValueError: other shapes, fewer than two seeds, or a value without logarithm.
    """
    positions = np.asarray(positions, dtype=np.float64)
    if positions.ndim != 1:
        raise ValueError(f"positions has shape {positions.shape}: give one row of numbers")
    return _fit(positions, values_by_seed, level)
