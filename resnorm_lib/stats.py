"""Statistics of repeated runs. The unit of replication is the first axis of every array: one entry, one seed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats as scipy_stats

__all__ = ["Interval", "geometric_mean_interval", "mean_interval", "span"]


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


def mean_interval(samples: ArrayLike, level: float = 0.99) -> Interval:
    """Mean over seeds with Student's t interval: mean ± t · sd/√n, n - 1 degrees of freedom.

    Args:
        samples: ``(seeds,)``; for a paired comparison, the differences within each pair.
        level: coverage of the interval.

    Raises:
        ValueError: fewer than two seeds, another shape, or a number that is not finite.
    """
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
