"""Random numbers from named streams, and the few operations that data are made with.

No datum depends on the CPU. Random numbers come from NumPy's generators, sums are taken in a fixed order and without
matrix products, and a choice is made by comparing a uniform number with a cumulative probability: where another
processor rounds the last digit of that probability otherwise, one choice in about 1e15 changes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["at_least", "choose", "gaussian", "generator", "product"]

Floats = NDArray[np.float64]
Tokens = NDArray[np.int64]


def generator(seed: int, purpose: str) -> np.random.Generator:
    """A stream of random numbers that belongs to this seed and this purpose, and to no other.

    The same on every machine and CPU path. Two arrays drawn for different purposes are independent,
    and adding a purpose changes no other array.

    Raises:
        ValueError: a negative seed.
    """
    if seed < 0:
        raise ValueError(f"seed = {seed} is not allowed: give zero or a positive integer")
    return np.random.default_rng([seed, zlib.crc32(purpose.encode())])


def gaussian(seeds: Iterable[int], purpose: str, *shape: int) -> torch.Tensor:
    """Standard normal numbers, one independent array for each seed: ``(seeds, *shape)``, float64."""
    return torch.stack([torch.from_numpy(generator(seed, purpose).standard_normal(shape)) for seed in seeds])


def choose(law: Floats, generator: np.random.Generator) -> Tokens:
    """One draw from each law: ``(..., choices)`` probabilities to ``(...)`` numbers from 0, by inversion.

    The choice is the first whose cumulative probability exceeds a uniform number.
    """
    uniform = generator.random(law.shape[:-1])
    index: Tokens = np.minimum((uniform[..., None] >= law.cumsum(-1)).sum(-1), law.shape[-1] - 1)
    return index


def product(x: Floats, weight: Floats) -> Floats:
    """``x``, ``(..., a)``, times ``weight``, ``(a, b)``, column after column: a matrix product rounds differently elsewhere."""
    total = np.zeros((*x.shape[:-1], weight.shape[1]))
    for column, row in enumerate(weight):
        total += x[..., column, None] * row
    return total


def at_least(least: int, **counts: int) -> None:
    """Refuse a count that is too small, by name.

    Raises:
        ValueError: one of the counts is below ``least``.
    """
    for name, count in counts.items():
        if count < least:
            raise ValueError(f"{name} = {count} is not allowed: give at least {least}")
