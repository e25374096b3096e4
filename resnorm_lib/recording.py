"""What a model shows at its named points: kept without a trace, and reduced to arrays whose axes have names.

A model shows its tensors to a callback, ``model(x, observe=callback)``, as ``callback(point, tensor)``: at
``stream/0`` to ``stream/L`` (the boundaries of the blocks), ``branch/k`` (what branch k adds to the stream), ``logits``,
``attention_logits/l`` (scaled, ``-inf`` where masked) and ``attention/l`` (the weights). Streams are ``(models, inputs,
[tokens,] [streams,] width)``, attention ``(models, inputs, heads, queries, keys)``. A block that only the first n models
have shows n rows; the other models read NaN there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

__all__ = ["Reading", "Recorder", "points_of", "record", "stack_reading"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Reading:
    """What a probe read, and where.

    Attributes:
        quantity: what was measured, with its reduction.
        point: at which point of the model or of the training step.
        axes: a name for each axis of ``values``; the first is always ``models``.
        labels: what stands along the second axis, by name; empty where there is none.
        values: float64.

    Raises:
        ValueError: axes or labels that do not fit the values.
    """

    quantity: str
    point: str
    axes: tuple[str, ...]
    labels: tuple[str, ...]
    values: Floats = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse names that do not fit."""
        shape = self.values.shape
        if self.axes[:1] != ("models",) or len(self.axes) != len(shape):
            raise ValueError(
                f"axes = {self.axes} do not name shape {shape}: one name for each axis, the first 'models'"
            )
        if len(self.labels) != (shape[1] if len(shape) > 1 else 0):
            raise ValueError(f"{len(self.labels)} labels for shape {shape}: give one for each entry of the second axis")


class Recorder:
    """A callback that keeps a copy of what the model shows, and of the gradients that come back to it.

    ``with Recorder("stream", gradients=True) as recorder: loss(model(x, observe=recorder)).backward()``

    A gradient is read in the backward pass, by a hook that returns nothing; parameters get the same bits with and
    without it, and leaving the ``with`` block removes every hook, also after an exception.

    Args:
        kinds: first parts of the wanted points, such as ``stream`` or ``logits``.
        gradients: whether to keep ∂loss/∂tensor too.

    Attributes:
        values: point to tensor, as the forward pass showed it.
        gradients: point to gradient, as the last backward pass in the ``with`` block brought it.

    Raises:
        ValueError: no kind.
        RuntimeError: a point shown twice, or gradients wanted outside a ``with`` block or where none are made.
    """

    def __init__(self, *kinds: str, gradients: bool = False) -> None:
        """Wait for these kinds of points."""
        if not kinds:
            raise ValueError("no kind of point is given: name at least one, such as 'stream' or 'logits'")
        self.kinds, self.wants_gradients = frozenset(kinds), gradients
        self.values: dict[str, Tensor] = {}
        self.gradients: dict[str, Tensor] = {}
        self._handles: list[RemovableHandle] | None = None

    def __enter__(self) -> Self:
        """Allow hooks."""
        self._handles = []
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove every hook."""
        for handle in self._handles or ():
            handle.remove()
        self._handles = None

    def __call__(self, point: str, tensor: Tensor) -> None:
        """Keep what is shown at this point."""
        if point.split("/")[0] not in self.kinds:
            return
        if point in self.values:
            raise RuntimeError(f"{point} was shown twice: use a new Recorder for each forward pass")
        if self.wants_gradients:
            if self._handles is None:
                raise RuntimeError(
                    "gradients are kept inside a with block only: with Recorder(..., gradients=True) as r:"
                )
            if not tensor.requires_grad:
                raise RuntimeError(
                    f"{point} has no gradient: leave torch.no_grad, or let some parameter below it train"
                )

            def keep(gradient: Tensor) -> None:
                self.gradients[point] = gradient.detach().clone()

            self._handles.append(tensor.register_hook(keep))
        self.values[point] = tensor.detach().clone()


def record(model: nn.Module, inputs: Tensor, *kinds: str, loss: Callable[[Tensor], Tensor] | None = None) -> Recorder:
    """One forward pass, and with a ``loss`` one backward pass, of which nothing stays in the model.

    Args:
        model: follows the rule at the head of this module.
        inputs: what the model takes.
        kinds: as in `Recorder`.
        loss: the model's output to a loss, ``(models,)`` or a scalar; the sum over models is differentiated, so that
            each model gets the gradient of its own loss. Gradients already in ``.grad`` stay as they are.

    Raises:
        ValueError, RuntimeError: as `Recorder`.
    """
    with torch.set_grad_enabled(loss is not None), Recorder(*kinds, gradients=loss is not None) as recorder:
        output = model(inputs, observe=recorder)
        if loss is not None:
            weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
            torch.autograd.grad(loss(output).sum(), weights, allow_unused=True)
    return recorder


def points_of(tensors: Mapping[str, Tensor], kind: str, needs: str = "") -> dict[str, Tensor]:
    """The tensors of one kind of point, in the order of their numbers.

    Args:
        tensors: ``values`` or ``gradients`` of a `Recorder`.
        kind: such as ``stream``.
        needs: what else to say about how to record them, in the error.

    Raises:
        ValueError: there is none.
    """
    found = [point for point in tensors if point.split("/")[0] == kind]
    if not found:
        raise ValueError(f"the recorder has no {kind}: record with kind {kind!r}" + (f", {needs}" if needs else ""))
    return {point: tensors[point] for point in sorted(found, key=lambda point: int(point.split("/")[1]))}


def stack_reading(
    quantity: str,
    point: str,
    axis: str,
    tensors: Mapping[str, Tensor],
    reduce: Callable[[Tensor], Tensor],
    models: int = 0,
    axes: tuple[str, ...] = (),
) -> Reading:
    """Reduce each tensor to ``(its models, *axes)`` and stack them along ``axis``: ``(models, axis, *axes)``.

    Args:
        quantity, point: as in `Reading`.
        axis: name of the second axis; its labels are the names of the tensors.
        tensors: by name, ``(n, ...)`` with n at most ``models``; models beyond n read NaN.
        reduce: is given float64.
        models: least number of models.
        axes: names of the axes that ``reduce`` leaves after the first.
    """
    columns: list[NDArray[Any]] = [reduce(tensor.detach().cpu().double()).numpy() for tensor in tensors.values()]
    models = max(models, *map(len, columns), 1)
    values = np.full((models, len(columns), *columns[0].shape[1:]), np.nan)
    for index, column in enumerate(columns):
        values[: len(column), index] = column
    return Reading(quantity, point, ("models", axis, *axes), tuple(tensors), values)
