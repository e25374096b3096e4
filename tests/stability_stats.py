"""The long form of the coverage checks: how often each interval of the library holds a truth that is known.

``make stability`` runs it (``python tests/stability_stats.py``), in minutes; the tests run a short form of the same
designs. Each design draws data whose truth has a closed form, and asks for an interval; coverage is the share of
repeats whose interval holds the truth, with its own Monte Carlo error. A design passes where its coverage is within
four such errors of what it promises: ``level`` give or take its ``slack``, or at least ``level`` less the slack.

Scores and outcomes are normal with correlation r. Then, for labels "outcome above zero", AUC = 1/2 + (2/π) asin(r/√2),
and the concordance of pairs is 1/2 + asin(r)/π: orthant probabilities of three and of two normal variables.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.stats import norm

from resnorm_lib import ranking, resampling, stats

RESAMPLES = 400  # the standard error to about 4 %, which costs no coverage that these errors can see


class Design(NamedTuple):
    """One way to draw data: ``draw(generator, level)`` gives an interval and the truth that it should hold."""

    draw: Callable[[np.random.Generator, float], tuple[stats.Interval, float]]
    slack: float = 0.01
    at_least: bool = False


class Coverage(NamedTuple):
    """What was found: share of intervals that hold the truth, that lie above it, that lie below it."""

    covered: float
    above: float
    below: float
    repeats: int

    @property
    def error(self) -> float:
        """Monte Carlo standard error of ``covered``, with one success and one failure added so that it is not zero."""
        share = (self.covered * self.repeats + 1) / (self.repeats + 2)
        return float(np.sqrt(share * (1 - share) / self.repeats))

    def passes(self, design: Design, level: float) -> bool:
        """Whether this is what the design promises, within four Monte Carlo errors."""
        slack = design.slack * (1 - level) / 0.05  # slack is stated for 95 %, and shrinks with what may be missed
        gap = self.covered - level
        return gap >= -slack - 4 * self.error and (design.at_least or gap <= slack + 4 * self.error)


def auc_of(r: np.ndarray | float) -> float:
    """AUC of normal scores with correlation r (mean over several)."""
    return float(np.mean(0.5 + 2 / np.pi * np.arcsin(np.asarray(r) / np.sqrt(2))))


def concordance_of(r: np.ndarray | float) -> float:
    """Concordance of normal scores with correlation r (mean over several)."""
    return float(np.mean(0.5 + np.arcsin(r) / np.pi))


def shared(generator: np.random.Generator, configurations: int, seeds: int, share: float) -> np.ndarray:
    """Standard normal grid of which each configuration keeps a share over all its seeds: (configurations, seeds)."""
    kept, fresh = generator.normal(size=(configurations, 1)), generator.normal(size=(configurations, seeds))
    return np.sqrt(share) * kept + np.sqrt(1 - share) * fresh


def correlated(generator: np.random.Generator, outcome: np.ndarray, r: np.ndarray | float, share: float) -> np.ndarray:
    """Scores with correlation r (a number, or one for each seed or configuration) with the outcome."""
    return r * outcome + np.sqrt(1 - np.square(r)) * shared(generator, *outcome.shape, share)


def grid_auc(
    generator: np.random.Generator,
    level: float,
    *,
    sampled: resampling.Sampled,
    configurations: int = 90,
    seeds: int = 6,
    mean: float = 0.3,
    spread: float = 0.0,
    share: float = 0.8,
    difference: bool = False,
) -> tuple[stats.Interval, float]:
    """AUC (or its difference from an r = 0.2 diagnostic); each seed's r is mean ± spread by a fair coin."""
    outcome = shared(generator, configurations, seeds, share)
    r = mean + spread * generator.choice([-1, 1], seeds)
    score = correlated(generator, outcome, r, share)
    truth = auc_of([mean - spread, mean + spread]) if "seeds" in sampled else auc_of(r)
    how = {"sampled": sampled, "generator": generator, "level": level, "resamples": RESAMPLES}
    if difference:
        other = correlated(generator, outcome, 0.2, share)
        return resampling.auc_difference_interval(score, other, outcome > 0, **how), truth - auc_of(0.2)
    return resampling.auc_interval(score, outcome > 0, **how), truth


def grid_concordance(
    generator: np.random.Generator,
    level: float,
    *,
    sampled: resampling.Sampled,
    strata: int = 9,
    size: int = 10,
    seeds: int = 4,
    mean: float = 0.5,
    spread: float = 0.0,
    share: float = 0.8,
    difference: bool = False,
) -> tuple[stats.Interval, float]:
    """Concordance within strata, which shift scores and outcomes against each other; r differs between strata."""
    stratum = np.repeat(np.arange(strata), size)
    outcome = shared(generator, strata * size, seeds, share)
    r = (mean + spread * generator.choice([-1, 1], strata))[stratum][:, None]
    score = correlated(generator, outcome, r, share) - 3 * stratum[:, None]
    truth = concordance_of([mean - spread, mean + spread]) if "strata" in sampled else concordance_of(r)
    how = {"sampled": sampled, "generator": generator, "level": level, "resamples": RESAMPLES}
    shifted = outcome + 3 * stratum[:, None]
    if difference:
        other = correlated(generator, outcome, 0.2, share)
        found = resampling.concordance_difference_interval(score, other, shifted, stratum, **how)
        return found, truth - concordance_of(0.2)
    return resampling.concordance_interval(score, shifted, stratum, **how), truth


def binormal(
    generator: np.random.Generator, level: float, *, positives: int, negatives: int, shift: float
) -> tuple[stats.Interval, float]:
    """DeLong's interval for normal scores."""
    labels = np.arange(positives + negatives) < positives
    scores = generator.normal(size=labels.size) + shift * labels
    return ranking.delong_interval(scores, labels, level), float(norm.cdf(shift / np.sqrt(2)))


def binormal_pair(
    generator: np.random.Generator, level: float, *, shifts: tuple[float, float]
) -> tuple[stats.Interval, float]:
    """DeLong's interval of a difference, of two correlated scores."""
    labels = np.arange(90) < 45
    common = generator.normal(size=90)
    first, second = ((common + generator.normal(size=90)) / np.sqrt(2) + shift * labels for shift in shifts)
    truth = norm.cdf(shifts[0] / np.sqrt(2)) - norm.cdf(shifts[1] / np.sqrt(2))
    return ranking.delong_difference_interval(first, second, labels, level), float(truth)


def exponential(
    generator: np.random.Generator, level: float, *, positives: int, negatives: int, ratio: float
) -> tuple[stats.Interval, float]:
    """Hanley and McNeil's interval for exponential scores, whose means stand in a ratio."""
    labels = np.arange(positives + negatives) < positives
    scores = generator.exponential(np.where(labels, ratio, 1.0))
    area = float(ranking.auc(scores, labels)[0])
    return ranking.hanley_mcneil_interval(area, positives, negatives, level), ratio / (1 + ratio)


def share_of_seeds(
    generator: np.random.Generator, level: float, *, seeds: int, method: str
) -> tuple[stats.Interval, float]:
    """A proportion whose truth is itself drawn, so that coverage is the mean over truths."""
    truth = generator.uniform()
    return stats.proportion_interval(generator.uniform(size=seeds) < truth, level, method), truth


def two_way_mean(
    generator: np.random.Generator, level: float, *, configurations: int, seeds: int, shares: tuple[float, float, float]
) -> tuple[stats.Interval, float]:
    """Mean of a grid: deviations of configurations, of seeds, and of single runs."""
    parts = [generator.normal(size=size) for size in ((configurations, 1), (1, seeds), (configurations, seeds))]
    values = 2.0 + sum(share * part for share, part in zip(shares, parts, strict=True))
    return stats.grid_mean_interval(values, level), 2.0


def paired(generator: np.random.Generator, level: float, *, seeds: int) -> tuple[stats.Interval, float]:
    """Difference of two arms that share their seeds."""
    common = generator.normal(size=seeds)
    first, second = (common + 0.1 * generator.normal(size=seeds) + mean for mean in (0.3, 0.1))
    return stats.paired_difference_interval(first, second, level), 0.2


def lines(
    generator: np.random.Generator, level: float, *, kind: str, part: str, seeds: int = 5
) -> tuple[stats.Interval, float]:
    """A fit whose seeds have their own slope and prefactor, and points that share a seed's walk."""
    x = np.array([2.0, 4, 8, 16, 32])
    walk = 0.1 * generator.normal(size=(seeds, x.size)).cumsum(1)
    fit, run = (stats.power_law_fit, np.log(x)) if kind == "power" else (stats.exponential_fit, x)
    slopes, starts = 0.5 + 0.05 * generator.normal(size=(seeds, 1)), 0.7 + 0.2 * generator.normal(size=(seeds, 1))
    found = fit(x, np.exp(starts + slopes * run + walk), level)
    return (found.slope, 0.5) if part == "slope" else (found.prefactor, float(np.exp(0.7)))


def mean_of_normal(
    generator: np.random.Generator, level: float, *, seeds: int, geometric: bool
) -> tuple[stats.Interval, float]:
    """Mean, or geometric mean of the exponentials, of normal draws."""
    samples = generator.normal(2, 3, size=seeds)
    if geometric:
        return stats.geometric_mean_interval(np.exp(samples), level), float(np.exp(2))
    return stats.mean_interval(samples, level), 2.0


DESIGNS: dict[str, Design] = {
    "mean, 5 seeds": Design(partial(mean_of_normal, seeds=5, geometric=False), slack=0.0),
    "geometric mean, 5 seeds": Design(partial(mean_of_normal, seeds=5, geometric=True), slack=0.0),
    "paired difference, 5 seeds": Design(partial(paired, seeds=5), slack=0.0),
    "proportion, exact, 15 seeds": Design(partial(share_of_seeds, seeds=15, method="exact"), at_least=True, slack=0.0),
    "proportion, Wilson, 15 seeds": Design(partial(share_of_seeds, seeds=15, method="wilson"), slack=0.02),
    "power law, exponent": Design(partial(lines, kind="power", part="slope"), slack=0.0),
    "power law, prefactor": Design(partial(lines, kind="power", part="prefactor"), slack=0.0),
    "exponential, rate": Design(partial(lines, kind="exponential", part="slope"), slack=0.0),
    "exponential, prefactor": Design(partial(lines, kind="exponential", part="prefactor"), slack=0.0),
    "grid mean, all parts": Design(partial(two_way_mean, configurations=20, seeds=5, shares=(1.0, 0.5, 0.5))),
    "grid mean, seeds rule": Design(partial(two_way_mean, configurations=20, seeds=5, shares=(0.2, 1.0, 0.5))),
    "grid mean, runs rule": Design(
        partial(two_way_mean, configurations=20, seeds=5, shares=(0.0, 0.0, 1.0)), at_least=True
    ),
    "Hanley–McNeil, 45 + 45": Design(partial(exponential, positives=45, negatives=45, ratio=1.4)),
    "Hanley–McNeil, 15 + 75, area .9": Design(partial(exponential, positives=15, negatives=75, ratio=9), slack=0.02),
    "DeLong, 45 + 45, area .6": Design(partial(binormal, positives=45, negatives=45, shift=0.36)),
    "DeLong, 45 + 45, area .95": Design(partial(binormal, positives=45, negatives=45, shift=2.33), slack=0.02),
    "DeLong, 10 + 80, area .8": Design(partial(binormal, positives=10, negatives=80, shift=1.19), slack=0.03),
    "DeLong difference, correlated": Design(partial(binormal_pair, shifts=(1.2, 0.7))),
    "AUC, configurations, 1 seed": Design(partial(grid_auc, sampled="configurations", seeds=1)),
    "AUC, configurations, 6 seeds": Design(partial(grid_auc, sampled="configurations", spread=0.2)),
    "AUC, configurations, 30 only": Design(
        partial(grid_auc, sampled="configurations", configurations=30, mean=0.7), slack=0.02
    ),
    "AUC, configurations and seeds": Design(
        partial(grid_auc, sampled="configurations and seeds", spread=0.25), at_least=True
    ),
    "AUC, … and seeds, 16 seeds": Design(
        partial(grid_auc, sampled="configurations and seeds", seeds=16, spread=0.25), at_least=True
    ),
    "AUC, … and seeds, runs apart": Design(
        partial(grid_auc, sampled="configurations and seeds", share=0.0), at_least=True, slack=0.0
    ),
    "AUC difference, configurations": Design(partial(grid_auc, sampled="configurations", difference=True)),
    "AUC difference, … and seeds": Design(
        partial(grid_auc, sampled="configurations and seeds", spread=0.25, difference=True), at_least=True
    ),
    "matched pairs, configurations": Design(
        partial(grid_concordance, sampled="configurations", spread=0.3), at_least=True
    ),
    "matched pairs, strata": Design(partial(grid_concordance, sampled="strata", spread=0.3), slack=0.02),
    "matched pairs, 45 strata of 2": Design(
        partial(grid_concordance, sampled="strata", strata=45, size=2, spread=0.3), slack=0.02
    ),
    "matched pairs, difference": Design(
        partial(grid_concordance, sampled="configurations", spread=0.3, difference=True), at_least=True
    ),
}


def cover(name: str, level: float, repeats: int, seed: int = 0) -> Coverage:
    """Repeat one design; the same seed gives the same data on every machine with this numpy."""
    generator = np.random.default_rng([seed, *name.encode()])
    above = below = 0
    for _ in range(repeats):
        interval, truth = DESIGNS[name].draw(generator, level)
        above += truth < interval.low
        below += truth > interval.high
    return Coverage(1 - (above + below) / repeats, above / repeats, below / repeats, repeats)


def main() -> int:
    """Print a table; exit with 1 where a design breaks its promise."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--repeats", type=int, default=4000, help="data sets for each design and level (4000)")
    parser.add_argument("--levels", type=float, nargs="+", default=[0.95, 0.99], help="levels of the intervals")
    parser.add_argument("--only", default="", help="designs whose name holds this")
    parser.add_argument("--workers", type=int, default=2, help="processes (2)")
    choice = parser.parse_args()
    work = [(name, level) for name in DESIGNS if choice.only in name for level in choice.levels]
    broken = 0
    print(f"{'design':34} level covered ± error  above truth  below truth")
    with ProcessPoolExecutor(choice.workers) as pool:
        found = pool.map(cover, *zip(*work, strict=True), [choice.repeats] * len(work))
        for (name, level), result in zip(work, found, strict=True):
            good = result.passes(DESIGNS[name], level)
            broken += not good
            line = f"{name:34} {level:5.3g}  {result.covered:.4f} ± {result.error:.4f}"
            print(f"{line}       {result.above:.4f}       {result.below:.4f}{'' if good else '  BROKEN'}", flush=True)
    print(f"{len(work) - broken} passed, {broken} failed")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
