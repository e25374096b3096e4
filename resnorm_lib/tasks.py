"""Random arrays from named streams, and data whose best possible score is known."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["MarkovSource", "gaussian", "generator"]


def generator(seed: int, purpose: str) -> np.random.Generator:
    """A stream of random numbers that belongs to this seed and this purpose, and to no other.

    The same on every machine and CPU path. Two arrays drawn for different purposes are independent,
    and adding a purpose changes no other array.
    """
    return np.random.default_rng([seed, zlib.crc32(purpose.encode())])


def gaussian(seeds: Iterable[int], purpose: str, *shape: int) -> torch.Tensor:
    """Standard normal numbers, one independent array for each seed: ``(seeds, *shape)``, float64."""
    return torch.stack([torch.from_numpy(generator(seed, purpose).standard_normal(shape)) for seed in seeds])


@dataclass(frozen=True)
class MarkovSource:
    """A language in which the next token depends on the last two, and on nothing else.

    Attributes:
        table: ``(vocabulary, vocabulary, vocabulary)``, p(next | last but one, last).
        pairs: ``(vocabulary, vocabulary)``, the stationary law of two successive tokens.
    """

    table: NDArray[np.float64]
    pairs: NDArray[np.float64]

    @classmethod
    def draw(cls, vocabulary: int, concentration: float, generator: np.random.Generator) -> MarkovSource:
        """A random language: each row of the table is Dirichlet with this concentration.

        Raises:
            ValueError: fewer than two tokens, or a concentration that is not positive.
        """
        if vocabulary < 2 or not concentration > 0:
            raise ValueError(
                f"vocabulary = {vocabulary} and concentration = {concentration} are not allowed: "
                "give at least 2 tokens and a positive concentration"
            )
        table = generator.dirichlet(np.full(vocabulary, concentration), size=(vocabulary, vocabulary))
        pairs = np.full((vocabulary, vocabulary), 1 / vocabulary**2)
        for _ in range(10_000):
            step = np.einsum("ab,abc->bc", pairs, table)
            pairs, change = (pairs + step) / 2, np.abs(pairs - step).max()
            if change < 1e-15:
                break
        return cls(table, pairs / pairs.sum())

    def entropies(self) -> tuple[float, float, float]:
        """Entropy of the next token in nats, given nothing, given the last token, given the last two.

        H₁ = -Σ p(b) ln p(b), H₂ = -Σ p(a, b) ln p(b | a), H₃ = -Σ p(a, b) p(c | a, b) ln p(c | a, b).
        """
        single = self.pairs.sum(1)
        return (
            -float(_x_log_y(single, single).sum()),
            -float(_x_log_y(self.pairs, self.pairs / single[:, None]).sum()),
            -float(_x_log_y(self.pairs[:, :, None] * self.table, self.table).sum()),
        )

    def floor(self, length: int) -> float:
        """Mean entropy in nats of the ``length`` predictions in a sequence: (H₂ + (length - 1) H₃)/length.

        The first prediction sees one token only. No model can have a lower expected cross-entropy.
        """
        _, pair, triple = self.entropies()
        return (pair + (length - 1) * triple) / length

    def sample(self, sequences: int, length: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Independent stretches of the stationary language: ``(sequences, length + 1)`` tokens."""
        vocabulary = len(self.pairs)
        tokens = np.empty((sequences, length + 1), dtype=np.int64)
        first = _invert(self.pairs.reshape(1, -1), generator.random(sequences))
        tokens[:, 0], tokens[:, 1] = np.divmod(first, vocabulary)
        for place in range(2, length + 1):
            law = self.table[tokens[:, place - 2], tokens[:, place - 1]]
            tokens[:, place] = _invert(law, generator.random(sequences))
        return tokens

    def surprise(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """-ln of the exact probability of each token after the first: ``(..., length + 1)`` to ``(..., length)``."""
        single = self.pairs.sum(1)
        first = self.pairs[tokens[..., 0], tokens[..., 1]] / single[tokens[..., 0]]
        rest = self.table[tokens[..., :-2], tokens[..., 1:-1], tokens[..., 2:]]
        probabilities: NDArray[np.float64] = np.concatenate([first[..., None], rest], axis=-1)
        return -np.log(probabilities)


def _x_log_y(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(x > 0, x * np.log(np.where(x > 0, y, 1.0)), 0.0)


def _invert(law: NDArray[np.float64], uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    """Index of the first cumulative probability above each uniform number."""
    index: NDArray[np.int64] = np.minimum((uniform[:, None] >= law.cumsum(-1)).sum(-1), law.shape[-1] - 1)
    return index
