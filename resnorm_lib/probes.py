"""Measurements of a model at named points, which change nothing in it.

Each takes what a `resnorm_lib.recording.Recorder` kept, or gradients as they stand, and returns a `Reading` in float64.
Where a stream has tokens, or several streams, each of them counts as an input unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from resnorm_lib.recording import Reading, Recorder, points_of, stack_reading
from resnorm_lib.spectra import effective_rank
from resnorm_lib.stack import Stack

__all__ = [
    "ActivationGradientNorms",
    "across_input_cosine",
    "activation_gradient_norms",
    "attention_entropy",
    "function_change",
    "largest_attention_logit",
    "matrix_gradient_norms",
    "parameter_gradient_norms",
    "stream_effective_rank",
    "stream_norm",
]


class ActivationGradientNorms(NamedTuple):
    """Three norms of g = ∂loss/∂stream, which differ: each is a `Reading` of ``(models, boundaries)``.

    Attributes:
        mean_of_norms: mean over inputs of ‖g‖.
        norm_of_mean: ‖mean over inputs of g‖: what the inputs agree on.
        frobenius: √(sum over inputs of ‖g‖²).
    """

    mean_of_norms: Reading
    norm_of_mean: Reading
    frobenius: Reading


def activation_gradient_norms(recorder: Recorder) -> ActivationGradientNorms:
    """Norms of the gradient of the loss with respect to the stream at each boundary of the blocks.

    With tokens, an input is one token of one sequence. If the loss is a mean over inputs, so is each gradient divided
    by their number. Activations are never clipped: these are the norms of the backward pass itself.

    Raises:
        ValueError: the recorder has no gradient of a stream.
    """
    kept = points_of(recorder.gradients, "stream", "gradients=True and a backward pass inside the with block")

    def read(name: str, reduce: Callable[[Tensor], Tensor]) -> Reading:
        return stack_reading(f"{name} of the activation gradient", "∂loss/∂stream/l", "boundaries", kept, reduce)

    return ActivationGradientNorms(
        read("mean over inputs of the norm", lambda g: _norm(g.flatten(1, -2)).mean(1)),
        read("norm of the mean over inputs", lambda g: _norm(g.flatten(1, -2).mean(1))),
        read("Frobenius norm over inputs", lambda g: _norm(g.flatten(1))),
    )


Clipping = Literal["before clipping", "after clipping"]


def parameter_gradient_norms(model: nn.Module, *, point: Clipping) -> Reading:
    """Frobenius norm of the gradient of each parameter, for each model: ``(models, parameters)``.

    Reads ``.grad`` as it stands; the caller says whether it was clipped. NaN where a model has no such parameter.
    Parameters without a gradient are left out.

    Raises:
        ValueError: another ``point``, or no parameter has a gradient.
    """
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    return _gradient_norms("parameters", gradients, point, max(map(len, model.parameters())))


def matrix_gradient_norms(model: Stack, *, point: Clipping) -> Reading:
    """Frobenius norm of the gradient of each weight matrix, for each model: ``(models, matrices)``.

    As `parameter_gradient_norms`, but query, key and value are read apart where they share one parameter. Labels are
    ``role/layer``, or the role alone outside the blocks.

    Raises:
        ValueError: another ``point``, or no matrix has a gradient.
    """
    gradients = {m.role if m.layer is None else f"{m.role}/{m.layer}": m.gradient for m in model.matrices}
    return _gradient_norms("matrices", gradients, point, model.models)


def _gradient_norms(axis: str, gradients: dict[str, Tensor | None], point: str, models: int) -> Reading:
    if point not in ("before clipping", "after clipping"):
        raise ValueError(f"point = {point!r} is not allowed: say 'before clipping' or 'after clipping'")
    present = {name: gradient for name, gradient in gradients.items() if gradient is not None}
    if not present:
        raise ValueError("no parameter has a gradient: call backward first")
    return stack_reading(
        f"Frobenius norm of the gradient of the {axis}", point, axis, present, lambda g: _norm(g.flatten(1)), models
    )


def stream_norm(recorder: Recorder) -> Reading:
    """Mean over inputs (and tokens) of the Euclidean norm of the stream: ``(models, boundaries)``.

    Raises:
        ValueError: the recorder has no stream.
    """
    kept = points_of(recorder.values, "stream")
    return stack_reading(
        "mean over inputs of the norm", "stream/l", "boundaries", kept, lambda x: _norm(x).flatten(1).mean(1)
    )


def across_input_cosine(recorder: Recorder, across: Literal["inputs", "tokens"] = "inputs") -> Reading:
    """Mean cosine between the streams of two different inputs, over all pairs: ``(models, boundaries)``.

    (‖Σ_i u_i‖² - n)/(n (n - 1)), u_i = x_i/‖x_i‖, n inputs. One: the model sees no difference between its inputs.

    Args:
        recorder: with streams.
        across: ``inputs`` compares different sequences at the same place (and averages over places), ``tokens``
            different places of one sequence (and averages over sequences).

    Raises:
        ValueError: no stream, fewer than two things to compare, or another ``across``.
    """
    if across not in ("inputs", "tokens"):
        raise ValueError(f"across = {across!r} is not allowed: use 'inputs' or 'tokens'")
    kept, axis = points_of(recorder.values, "stream"), 1 if across == "inputs" else 2
    sizes = {tensor.shape[axis] if tensor.ndim > axis + 1 else 1 for tensor in kept.values()}
    if min(sizes) < 2:
        raise ValueError(f"{min(sizes)} {across[:-1]} has nothing to compare with: give at least 2 {across}")

    def cosine(x: Tensor) -> Tensor:
        n, unit = x.shape[axis], x / _norm(x).unsqueeze(-1)
        pairs = (_norm(unit.sum(axis)).square() - n) / (n * (n - 1))
        return pairs.flatten(1).mean(1) if pairs.ndim > 1 else pairs

    return stack_reading(f"mean cosine between {across}", "stream/l", "boundaries", kept, cosine)


def stream_effective_rank(recorder: Recorder) -> Reading:
    """`effective_rank` of the matrix of all inputs (and tokens) by width, not centred: ``(models, boundaries)``.

    NaN where the stream is zero or not finite.

    Raises:
        ValueError: the recorder has no stream.
    """

    def rank(x: Tensor) -> Tensor:
        matrix = x.flatten(1, -2)
        whole = matrix.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
        return torch.from_numpy(effective_rank(torch.linalg.svdvals(matrix.where(whole, 0.0)).log().numpy()))

    kept = points_of(recorder.values, "stream")
    return stack_reading("effective rank of inputs by width", "stream/l", "boundaries", kept, rank)


def function_change(before: Recorder, after: Recorder, *, steps: int) -> Reading:
    """Root mean square over inputs of ‖f_after(x) - f_before(x)‖, at every point both kept: ``(models, points)``.

    Both must come from the same inputs. At ``logits`` it is the size of the update in function space.

    Args:
        before, after: recorders of the model before and after the update.
        steps: number of optimiser steps between the two, for the record.

    Raises:
        ValueError: different points or shapes, or fewer than one step.
    """
    if steps < 1:
        raise ValueError(f"steps = {steps} is not allowed: give at least 1")
    shapes = [{point: tuple(x.shape) for point, x in recorder.values.items()} for recorder in (before, after)]
    if shapes[0] != shapes[1] or not shapes[0]:
        raise ValueError(f"before and after do not show the same: {shapes[0]} and {shapes[1]}; record the same inputs")
    moved = {point: after.values[point].double() - value.double() for point, value in before.values.items()}

    def size(x: Tensor) -> Tensor:
        return _norm(x).square().flatten(1).mean(1).sqrt()

    return stack_reading(
        f"rms over inputs of the change after {steps} steps",
        "the points named along the second axis",
        "points",
        moved,
        size,
    )


def attention_entropy(recorder: Recorder) -> Reading:
    """Entropy in nats of the attention weights, mean over inputs and queries: ``(models, layers, heads)``.

    -Σ_keys a ln a, zero where a is zero; between 0 and the logarithm of the number of keys that a query may see.

    Raises:
        ValueError: the recorder has no attention weights.
    """
    kept = points_of(recorder.values, "attention")
    return stack_reading(
        "entropy of attention, mean over inputs and queries",
        "attention/l",
        "layers",
        kept,
        lambda a: torch.special.entr(a).sum(-1).mean((1, 3)),
        axes=("heads",),
    )


def largest_attention_logit(recorder: Recorder) -> Reading:
    """Largest absolute logit that is not masked, over inputs, queries and keys: ``(models, layers, heads)``.

    Raises:
        ValueError: the recorder has no attention logits.
    """
    kept = points_of(recorder.values, "attention_logits")
    return stack_reading(
        "largest absolute attention logit",
        "attention_logits/l, before the softmax",
        "layers",
        kept,
        # Only -inf is a mask: +inf and NaN are failures, and must show.
        lambda z: torch.where(z == -torch.inf, 0.0, z.abs()).amax((1, 3, 4)),
        axes=("heads",),
    )


def _norm(x: Tensor) -> Tensor:
    result: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return result
