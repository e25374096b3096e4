"""A fixed network that labels its inputs at random, with probabilities that are known exactly."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq

from resnorm_lib.draws import at_least, choose, product

__all__ = ["Teacher"]

Floats = NDArray[np.float64]
Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class Teacher:
    """A fixed network that labels its inputs at random, with probabilities that are known exactly.

    p*(y | x) = softmax(beta * tanh(x A) W)_y, with x ~ N(0, I).

    Attributes:
        first: A, ``(inputs, hidden)``.
        second: W, ``(hidden, classes)``.
        beta: inverse temperature; 0 makes every label equally likely, infinity would make it certain.

    Raises:
        ValueError: shapes that do not fit together, or a number that is not finite or, for ``beta``, negative.
    """

    first: Floats
    second: Floats
    beta: float

    def __post_init__(self) -> None:
        """Refuse matrices that cannot be multiplied, and numbers that are none."""
        if self.first.ndim != 2 or self.second.ndim != 2 or self.first.shape[1] != self.second.shape[0]:
            raise ValueError(
                f"first has shape {self.first.shape} and second {self.second.shape}: "
                "give (inputs, hidden) and (hidden, classes)"
            )
        if self.second.shape[1] < 2:
            raise ValueError(f"classes = {self.second.shape[1]} is not allowed: give at least 2")
        _finite("first", self.first)
        _finite("second", self.second)
        if not 0 <= self.beta < np.inf:
            raise ValueError(f"beta = {self.beta} is not allowed: give zero or a finite positive number")

    @classmethod
    def draw(
        cls, generator: np.random.Generator, inputs: int = 8, hidden: int = 32, classes: int = 4, beta: float = 3.0
    ) -> Teacher:
        """A random teacher: A ~ N(0, 1/inputs), W ~ N(0, 1/hidden), independent entries.

        Raises:
            ValueError: a size below one (two for ``classes``), or a ``beta`` that is negative or not finite.
        """
        at_least(1, inputs=inputs, hidden=hidden)
        at_least(2, classes=classes)
        first = generator.standard_normal((inputs, hidden)) / np.sqrt(inputs)
        return cls(first, generator.standard_normal((hidden, classes)) / np.sqrt(hidden), beta)

    def log_probabilities(self, x: Floats) -> Floats:
        """ln p*(y | x): ``(..., inputs)`` to ``(..., classes)``.

        Raises:
            ValueError: another number of inputs, or a number that is not finite.
        """
        return _log_softmax(self.beta * self._scores(x))

    def entropy(self, x: Floats) -> Floats:
        """H(x) = -sum_y p*(y | x) ln p*(y | x): ``(..., inputs)`` to ``(...)``; between 0 and ln classes.

        Raises:
            ValueError: as `log_probabilities`.
        """
        return _entropy(self.log_probabilities(x))

    def floor(self, x: Floats) -> float:
        """Mean of `entropy` over all given inputs: no model has a lower expected cross-entropy on them.

        Raises:
            ValueError: as `log_probabilities`.
        """
        return float(self.entropy(x).mean())

    def with_floor(self, floor: float, x: Floats) -> Teacher:
        """The same teacher, with the inverse temperature that gives this `floor` on these inputs.

        The mean entropy falls as ``beta`` grows, since dH/dbeta = -beta Var_p*(score), so that there is one solution;
        it is found by Brent's method, to 1e-12 nats.

        Args:
            floor: wanted mean entropy in nats, between 0 and ln classes, both excluded.
            x: ``(..., inputs)``, usually the held-out inputs.

        Raises:
            ValueError: a floor outside that range, or one that no ``beta`` reaches because scores are tied.
        """
        classes = self.second.shape[1]
        if not 0 < floor < np.log(classes):
            raise ValueError(
                f"floor = {floor} is not allowed: give a number between 0 and ln({classes}) = "
                f"{np.log(classes):.4f}, both excluded"
            )
        scores = self._scores(x)

        def gap(beta: float) -> float:
            return float(_entropy(_log_softmax(beta * scores)).mean()) - floor

        upper = 1.0
        while gap(upper) > 0:
            upper *= 2
            if upper > 1e12:
                raise ValueError(
                    f"floor = {floor} is below the mean entropy of tied scores, which no beta removes: "
                    "give a larger floor, or inputs without ties (an input of zeros is one)"
                )
        return replace(self, beta=float(brentq(gap, 0.0, upper, xtol=1e-15 * upper, rtol=4 * np.finfo(float).eps)))

    def labels(self, x: Floats, generator: np.random.Generator) -> Tokens:
        """One label for each input, drawn from p*: ``(..., inputs)`` to ``(...)``.

        Raises:
            ValueError: as `log_probabilities`.
        """
        return choose(np.exp(self.log_probabilities(x)), generator)

    def sample(self, count: int, generator: np.random.Generator) -> tuple[Floats, Tokens]:
        """Fresh inputs and their labels: ``(count, inputs)`` standard normal, and ``(count,)``.

        Raises:
            ValueError: fewer than one.
        """
        at_least(1, count=count)
        x = generator.standard_normal((count, self.first.shape[0]))
        return x, self.labels(x, generator)

    def kl(self, x: Floats, logits: torch.Tensor | Floats) -> Floats:
        """KL(p* || q) of each input, exactly, for a model's q = softmax(logits).

        sum_y p*(y | x) (ln p*(y | x) - ln q(y | x)), which is the expected cross-entropy less `entropy`. No label is
        drawn. A model whose logits are not finite gets NaN, and no other does.

        Args:
            x: ``(batch, inputs)``, or with leading axes that broadcast against those of ``logits``.
            logits: ``(models, batch, classes)``, any floating dtype, of any model.

        Returns:
            ``(models, batch)``, nats; its mean over the batch is the held-out KL.

        Raises:
            ValueError: as `log_probabilities`, or another number of classes.
        """
        true = self.log_probabilities(x)
        given = logits.detach().to("cpu", torch.float64).numpy() if isinstance(logits, torch.Tensor) else logits
        if given.shape[-1] != true.shape[-1]:
            raise ValueError(f"logits have {given.shape[-1]} classes, and the teacher has {true.shape[-1]}")
        with np.errstate(invalid="ignore"):
            divergence: Floats = (np.exp(true) * (true - _log_softmax(given))).sum(-1)
        return divergence

    def _scores(self, x: Floats) -> Floats:
        if x.shape[-1] != self.first.shape[0]:
            raise ValueError(f"x has {x.shape[-1]} inputs, and the teacher has {self.first.shape[0]}")
        _finite("x", x)
        return product(np.tanh(product(x, self.first)), self.second)


def _finite(name: str, array: Floats) -> None:
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds {array[~np.isfinite(array)].flat[0]}: give finite numbers only")


def _log_softmax(scores: Floats) -> Floats:
    shifted = scores - scores.max(-1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


def _entropy(log_law: Floats) -> Floats:
    result: Floats = -(np.exp(log_law) * log_law).sum(-1)
    return result
