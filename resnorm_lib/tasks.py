"""Data whose best possible score is known: a random language, a copying task, and the teacher.

Everything is float64 and in nats. The two languages have the same methods; how draws are kept independent of the CPU
is said in ``resnorm_lib.draws``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resnorm_lib.draws import at_least, choose, gaussian, generator, product
from resnorm_lib.teacher import Teacher

__all__ = ["CopyTask", "MarkovSource", "Teacher", "gaussian", "generator"]

Floats = NDArray[np.float64]
Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class MarkovSource:
    """A language in which the next token depends on the last two, and on nothing else.

    Attributes:
        table: ``(vocabulary, vocabulary, vocabulary)``, p(next | last but one, last).
        pairs: ``(vocabulary, vocabulary)``, the stationary law of two successive tokens.

    Raises:
        ValueError: shapes that do not fit together, rows that are no probabilities, or pairs that are not stationary.
    """

    table: Floats
    pairs: Floats

    def __post_init__(self) -> None:
        """Refuse a table whose floor would be wrong."""
        size = len(self.pairs)
        if self.pairs.shape != (size, size) or self.table.shape != (size, size, size):
            raise ValueError(
                f"table has shape {self.table.shape} and pairs {self.pairs.shape}: give (v, v, v) and (v, v)"
            )
        for name, law in (("table", self.table), ("pairs", self.pairs.reshape(-1))):
            # Written so that NaN is refused too.
            if not ((law >= 0).all() and (np.abs(law.sum(-1) - 1) < 1e-9).all()):
                raise ValueError(f"{name} holds a row that is no law: give numbers from 0 on that sum to 1")
        if np.abs(_step(self.pairs, self.table) - self.pairs).max() > 1e-9:
            raise ValueError(
                "pairs is not the stationary law of table: the floor would be wrong; draw with another seed"
            )

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
            step = _step(pairs, table)
            pairs, change = (pairs + step) / 2, np.abs(pairs - step).max()
            if change < 1e-15:
                break
        return cls(table, pairs / pairs.sum() if change < 1e-12 else _stationary(table))

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

        Raises:
            ValueError: a length below one.
        """
        at_least(1, length=length)
        _, pair, triple = self.entropies()
        return (pair + (length - 1) * triple) / length

    def sample(self, sequences: int, length: int, generator: np.random.Generator) -> Tokens:
        """Independent stretches of the stationary language: ``(sequences, length + 1)`` tokens.

        Raises:
            ValueError: fewer than one sequence, or a length below one.
        """
        at_least(1, sequences=sequences, length=length)
        vocabulary = len(self.pairs)
        tokens = np.empty((sequences, length + 1), dtype=np.int64)
        first = choose(np.broadcast_to(self.pairs.reshape(-1), (sequences, vocabulary**2)), generator)
        tokens[:, 0], tokens[:, 1] = np.divmod(first, vocabulary)
        for place in range(2, length + 1):
            tokens[:, place] = choose(self.table[tokens[:, place - 2], tokens[:, place - 1]], generator)
        return tokens

    def examples(self, tokens: Tokens) -> tuple[Tokens, Tokens]:
        """What a model sees and what it is to say, the next token: ``(..., length + 1)`` to two of ``(..., length)``."""
        return tokens[..., :-1], tokens[..., 1:]

    def surprise(self, tokens: Tokens) -> Floats:
        """-ln of the exact probability of each token after the first: ``(..., length + 1)`` to ``(..., length)``.

        Raises:
            ValueError: a token outside the vocabulary.
        """
        _inside(tokens, len(self.pairs))
        single = self.pairs.sum(1)
        first = self.pairs[tokens[..., 0], tokens[..., 1]] / single[tokens[..., 0]]
        rest = self.table[tokens[..., :-2], tokens[..., 1:-1], tokens[..., 2:]]
        probabilities: Floats = np.concatenate([first[..., None], rest], axis=-1)
        return -np.log(probabilities)


@dataclass(frozen=True)
class CopyTask:
    """Independent, equally likely tokens, of which the model is to repeat the one before the one it sees.

    At the first place there is none: what is asked for there was never shown, so that ln vocabulary nats are lost,
    once in a sequence. The methods are those of `MarkovSource`.

    Attributes:
        vocabulary: number of tokens, at least 2.

    Raises:
        ValueError: fewer than two tokens.
    """

    vocabulary: int

    def __post_init__(self) -> None:
        """Refuse a language without a choice."""
        at_least(2, vocabulary=self.vocabulary)

    def floor(self, length: int) -> float:
        """Mean entropy in nats of the ``length`` predictions in a sequence: ln(vocabulary)/length.

        Raises:
            ValueError: a length below one.
        """
        at_least(1, length=length)
        return float(np.log(self.vocabulary)) / length

    def sample(self, sequences: int, length: int, generator: np.random.Generator) -> Tokens:
        """Independent tokens: ``(sequences, length + 1)``, of which the first is never shown.

        Raises:
            ValueError: fewer than one sequence, or a length below one.
        """
        at_least(1, sequences=sequences, length=length)
        return generator.integers(self.vocabulary, size=(sequences, length + 1), dtype=np.int64)

    def examples(self, tokens: Tokens) -> tuple[Tokens, Tokens]:
        """What a model sees and what it is to say, the token before: ``(..., length + 1)`` to two of ``(..., length)``."""
        return tokens[..., 1:], tokens[..., :-1]

    def surprise(self, tokens: Tokens) -> Floats:
        """-ln of the exact probability of each target: ln vocabulary, then zeros; ``(..., length + 1)`` to ``(..., length)``.

        Raises:
            ValueError: a token outside the vocabulary.
        """
        _inside(tokens, self.vocabulary)
        result = np.zeros((*tokens.shape[:-1], tokens.shape[-1] - 1))
        result[..., 0] = np.log(self.vocabulary)
        return result


def _inside(tokens: Tokens, vocabulary: int) -> None:
    outside = tokens[(tokens < 0) | (tokens >= vocabulary)]
    if outside.size:
        raise ValueError(f"token {outside[0]} is not in the vocabulary: give tokens from 0 to {vocabulary - 1}")


def _step(pairs: Floats, table: Floats) -> Floats:
    """The law of a pair one token later."""
    result: Floats = np.einsum("ab,abc->bc", pairs, table)
    return result


def _stationary(table: Floats) -> Floats:
    """The stationary law of pairs of a language that forgets slowly: 2^40 lazy steps, by squaring their matrix."""
    size = len(table)
    steps = np.zeros((size, size, size, size))
    steps[:, np.arange(size), np.arange(size)] = table
    steps = (steps.reshape(size**2, size**2) + np.eye(size**2)) / 2
    for _ in range(40):
        steps = product(steps, steps)
        steps /= steps.sum(1, keepdims=True)
    pairs: Floats = steps[0].reshape(size, size)
    return pairs


def _x_log_y(x: Floats, y: Floats) -> Floats:
    return np.where(x > 0, x * np.log(np.where(x > 0, y, 1.0)), 0.0)
