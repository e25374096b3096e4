"""Cluster-bootstrap intervals of concordance and AUC on a grid of configurations × seeds.

A pair is two configurations under one seed. Pairs share configurations, and a configuration's runs share it, so it
is configurations or whole strata that are resampled, each with all its seeds: never pairs, never single runs.
Shapes and conventions are those of `resnorm_lib.ranking`.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats as scipy_stats

from resnorm_lib.ranking import Pairs, area_bounds, as_labels, grids_of, pairs_of, stratum_numbers
from resnorm_lib.stats import Interval, check_level

__all__ = [
    "Sampled",
    "auc_difference_interval",
    "auc_interval",
    "concordance_difference_interval",
    "concordance_interval",
]

Sampled = Literal["configurations", "strata", "seeds", "configurations and seeds", "strata and seeds"]
"""What the interval takes as a sample of more of its kind; the rest is held as it is."""


def _weights(sampled: str, stratum: np.ndarray, generator: np.random.Generator, resamples: int) -> np.ndarray:
    """How often each resample holds each configuration, all its seeds with it: (resamples, configurations)."""
    sizes = np.bincount(stratum)
    if sampled == "strata":
        times = generator.multinomial(sizes.size, np.full(sizes.size, 1 / sizes.size), resamples)
        # A pair's weight is the product of two configurations' weights; one in a stratum drawn n times counts n times.
        return np.sqrt(times[:, stratum])
    weights = np.empty((resamples, stratum.size))
    for label, size in enumerate(sizes):
        weights[:, stratum == label] = generator.multinomial(size, np.full(size, 1 / size), resamples)
    return weights


def _independent(pairs: Pairs, stratum: np.ndarray, sampled: str) -> int:
    """How many pairs without a configuration in common (or strata, or seeds) agreed, where all pairs did."""
    unit, _, both = sampled.partition(" and ")
    seeds = len(pairs.counted)
    if unit == "seeds":
        return seeds
    units = int(stratum.max()) + 1
    if unit == "configurations":
        inside = (stratum == np.arange(units)[:, None]).astype(np.intp)
        better, worse = (pairs.counted.any(axis) @ inside.T for axis in (2, 1))
        units = int(np.minimum(np.minimum(better, worse), inside.sum(1) // 2).sum(1).min())
    return min(units, seeds) if both else units


def _error(
    all_pairs: list[Pairs], stratum: np.ndarray, sampled: str, generator: np.random.Generator, resamples: int
) -> tuple[float, float, float]:
    """Value (of one diagnostic, or the first minus the second), its standard error and degrees of freedom."""
    if sampled not in get_args(Sampled):
        raise ValueError(f"sampled = {sampled!r} is not allowed: use one of {', '.join(map(repr, get_args(Sampled)))}")
    if not isinstance(generator, np.random.Generator):
        raise TypeError(f"generator = {generator!r} is not allowed: give a numpy.random.Generator")
    if resamples < 100:
        raise ValueError(f"resamples = {resamples} is not allowed: a deviation needs at least 100, better 2,000")
    seeds, configurations = all_pairs[0].counted.shape[:2]
    groups = int(stratum.max()) + 1

    def value(weights: np.ndarray) -> np.ndarray:
        shares = [pairs.share(weights) for pairs in all_pairs]
        return shares[0] if len(shares) == 1 else shares[0] - shares[1]

    by_seed = value(np.ones((1, configurations)))[0]
    variances, degrees = [], []
    if "seeds" in sampled:
        if seeds < 2:
            raise ValueError("one seed tells nothing of other seeds: give at least 2, or sampled='configurations'")
        variances.append(by_seed.var(ddof=1) / seeds)
        degrees.append(seeds - 1)
    unit = sampled.removesuffix(" and seeds")
    if unit != "seeds":
        units, free = (groups, groups - 1) if unit == "strata" else (configurations, configurations - groups)
        if free < 1:
            raise ValueError(
                f"{units} {unit} in {groups} strata leave nothing to resample: give strata, or larger ones"
            )
        resampled = value(_weights(unit, stratum, generator, resamples)).mean(1)
        usable = np.isfinite(resampled)
        if usable.mean() < 0.95:
            raise ValueError(
                "over 5 % of resamples hold no pair to rank: there are too few positives, or too few strata"
            )
        variances.append(resampled[usable].var(ddof=1) * units / free)
        degrees.append(free)
    total = float(sum(variances))
    if total == 0:
        return float(by_seed.mean()), 0.0, float(min(degrees))
    effective = total**2 / sum(v**2 / d for v, d in zip(variances, degrees, strict=True))
    return float(by_seed.mean()), total**0.5, float(effective)


def concordance_interval(
    scores: ArrayLike,
    outcomes: ArrayLike,
    strata: ArrayLike | None = None,
    *,
    sampled: Sampled,
    generator: np.random.Generator,
    level: float = 0.99,
    resamples: int = 2000,
) -> Interval:
    """Mean over seeds of `concordance`, with a cluster-bootstrap interval.

    ``sampled`` says what the interval speaks of. ``"configurations"``: other configurations of the same strata;
    each is resampled within its stratum and takes all its seeds along. ``"strata"``: other strata; whole ones are
    resampled. ``"seeds"``: other seeds of these very configurations, by the spread over seeds, without resampling.
    ``"… and seeds"``: both; the two variances add up. Each holds the interaction, so the sum errs on the wide side,
    and so does resampling within strata of few configurations, where many drawn pairs are of one with itself.
    The bounds are symmetric in the logit: Student's t times the standard error, which is the resamples' deviation
    times √(n/(n - strata)), since resampling n units understates it by that; degrees of freedom by Satterthwaite.
    Where every pair agrees there is no spread to read: the bound is then that of so many successes in so many trials
    as there are pairs without a common configuration (or strata, or seeds, whichever are fewer).

    Args:
        scores, outcomes: ``(configurations, seeds)``.
        strata: ``(configurations,)`` labels, or ``None`` for all pairs.
        sampled: see above.
        generator: where the resamples are drawn from.
        level: coverage of the interval.
        resamples: how many; 2,000 give the standard error to about 2 %.

    Raises:
        ValueError: as `concordance`; nothing left to resample; one seed where seeds are sampled; few resamples.
        TypeError: a generator that is none of numpy's.

    Source: Cameron, Gelbach and Miller 2011 add variances of crossed clusters (J. Bus. Econ. Stat. 29, 238).
    """
    check_level(level)
    pairs = pairs_of(scores, outcomes, strata)
    stratum = stratum_numbers(strata, pairs.counted.shape[1])
    value, error, degrees = _error([pairs], stratum, sampled, generator, resamples)
    units = _independent(pairs, stratum, sampled)
    quantile = float(scipy_stats.t.ppf(0.5 + level / 2, degrees))
    return Interval(value, *area_bounds(value, error, quantile, units, level, "logit"), len(pairs.counted))


def concordance_difference_interval(
    scores: ArrayLike,
    others: ArrayLike,
    outcomes: ArrayLike,
    strata: ArrayLike | None = None,
    *,
    sampled: Sampled,
    generator: np.random.Generator,
    level: float = 0.99,
    resamples: int = 2000,
) -> Interval:
    """Mean over seeds of the concordance of ``scores`` less that of ``others``, on the same configurations and seeds.

    As `concordance_interval`, but both are read from the same resamples, and the bounds are symmetric about the
    difference.

    Args:
        scores, others, outcomes: ``(configurations, seeds)``.
        strata, sampled, generator, level, resamples: as `concordance_interval`.

    Raises:
        ValueError: as `concordance_interval`.
    """
    check_level(level)
    first, second, outcome = grids_of(scores, others, outcomes)
    pairs = [pairs_of(first, outcome, strata), pairs_of(second, outcome, strata)]
    value, error, degrees = _error(pairs, stratum_numbers(strata, len(outcome)), sampled, generator, resamples)
    half = float(scipy_stats.t.ppf(0.5 + level / 2, degrees)) * error
    return Interval(value, value - half, value + half, outcome.shape[1])


def auc_interval(
    scores: ArrayLike,
    positive: ArrayLike,
    *,
    sampled: Sampled,
    generator: np.random.Generator,
    level: float = 0.99,
    resamples: int = 2000,
) -> Interval:
    """Mean over seeds of `auc`, with the cluster-bootstrap interval of `concordance_interval`.

    Args:
        scores, positive: ``(configurations, seeds)``; a threshold that made the labels is held as it is.
        sampled, generator, level, resamples: as `concordance_interval`, without strata.

    Raises:
        ValueError: as `concordance_interval`, or a label that is neither true nor false.
    """
    return concordance_interval(
        scores, as_labels(positive), sampled=sampled, generator=generator, level=level, resamples=resamples
    )


def auc_difference_interval(
    scores: ArrayLike,
    others: ArrayLike,
    positive: ArrayLike,
    *,
    sampled: Sampled,
    generator: np.random.Generator,
    level: float = 0.99,
    resamples: int = 2000,
) -> Interval:
    """Mean over seeds of the AUC of ``scores`` less that of ``others``: `concordance_difference_interval` for labels.

    Args:
        scores, others, positive: ``(configurations, seeds)``.
        sampled, generator, level, resamples: as `concordance_interval`, without strata.

    Raises:
        ValueError: as `auc_interval`.
    """
    return concordance_difference_interval(
        scores, others, as_labels(positive), sampled=sampled, generator=generator, level=level, resamples=resamples
    )
