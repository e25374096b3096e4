"""The end-to-end Jacobian of a model's blocks, its singular values, and the paths that a gradient takes.

Read-only, with the points of ``resnorm_lib.recording``; results are float64.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from resnorm_lib.recording import Reading
from resnorm_lib.spectra import log_singular_values

__all__ = ["PathLength", "block_jacobians", "effective_path_length", "end_to_end"]


def block_jacobians(model: nn.Module, inputs: Tensor) -> Reading:
    """∂stream/(l+1) by ∂stream/l of every block, for every input: ``(models, blocks, inputs, out, in)``.

    By as many backward passes through each block as the stream of one input has numbers (width, or tokens times
    width, flattened). Correct where no input sees another, so not for batch normalisation. A block that a model does
    not have is the identity.

    Args:
        model: shows its ``stream``; nothing of it is changed.
        inputs: what the model takes.

    Raises:
        ValueError: the model shows fewer than two boundaries.
        RuntimeError: torch's, where a boundary does not depend on the one below.

    Used in ``ch_why_depth_fails``.
    """
    streams = _show(model, inputs, "stream")[1]
    if len(streams) < 2:
        raise ValueError(
            f"the model shows {len(streams)} boundaries of blocks: at least stream/0 and stream/1 are needed"
        )
    size = streams[0].flatten(2).shape[-1]
    models, count = streams[0].shape[:2]
    result = torch.eye(size, dtype=torch.float64).repeat(models, len(streams) - 1, count, 1, 1)
    for block, (below, above) in enumerate(pairwise(streams)):
        for row in range(size):
            one = torch.zeros_like(above).flatten(2)
            one[..., row] = 1
            (gradient,) = torch.autograd.grad(above, below, one.view_as(above), retain_graph=True)
            result[: len(above), block, :, row] = gradient[: len(above)].flatten(2).to(result)
    labels = tuple(f"block/{block}" for block in range(len(streams) - 1))
    return Reading(
        "Jacobian of each block",
        "∂stream/(l+1) by ∂stream/l",
        ("models", "blocks", "inputs", "out", "in"),
        labels,
        result.numpy(),
    )


def end_to_end(jacobians: Reading, method: Literal["qr", "svd"] = "qr", sweeps: int = 50) -> Reading:
    """ln of the singular values of the product of all blocks: ``(models, directions, inputs)``, largest first.

    NaN for an input at which a block's Jacobian is not finite.

    Args:
        jacobians: from `block_jacobians`.
        method, sweeps: as in `log_singular_values`.

    Raises:
        ValueError: as `log_singular_values`.

    Used in ``ch_why_depth_fails``.
    """
    factors = torch.from_numpy(jacobians.values).transpose(1, 2)
    whole = factors.isfinite().all(-1).all(-1).all(-1)[..., None]
    logs = log_singular_values(factors.where(whole[..., None, None], 1.0), method, sweeps)
    logs = logs.where(whole, torch.nan).transpose(1, 2)
    return Reading(
        f"ln of the singular values of the end-to-end Jacobian, by {method}",
        "∂stream/L by ∂stream/0",
        ("models", "directions", "inputs"),
        tuple(str(k) for k in range(logs.shape[1])),
        logs.numpy(),
    )


class PathLength(NamedTuple):
    """How many branches the gradient crosses on its way down.

    Attributes:
        mean: `Reading` of ``(models,)``, the effective path length.
        crossings: `Reading` of ``(models, branches)``, of which ``mean`` is the sum: the share of the gradient that
            crosses each branch. NaN where a model has no such branch.
    """

    mean: Reading
    crossings: Reading


def effective_path_length(model: nn.Module, inputs: Tensor, loss: Callable[[Tensor], Tensor]) -> PathLength:
    """Mean number of branches that the gradient reaching ``stream/0`` has crossed, weighted by gradient.

    The gradient is a sum over paths, g = Σ_k G_k, where G_k collects those through k branches; the length is
    Σ_k k ⟨G_k, g⟩/‖g‖², summed over inputs. With every branch scaled by s on the way back only, g(s) = Σ_k s^k G_k, so
    that the length is d ln‖g‖/d ln s at s = 1, and its part for one branch the derivative by that branch's own s; both
    are exact, by differentiating the backward pass. Shares can be negative, or exceed one, where paths cancel.

    Args:
        model: shows ``stream/0`` and each ``branch``; nothing of it is changed.
        inputs: what the model takes.
        loss: the model's output to a loss, ``(models,)`` or a scalar, differentiable twice.

    Raises:
        ValueError: the model shows no stream or no branch.

    Source: the sum over paths is that of Veit et al. 2016, section 3 (arXiv 1605.06431), who count paths and measure
    the gradient by length; the derivative is ours. Used in ``ch_residual_derivation``.
    """
    scales: dict[str, Tensor] = {}

    def scale(point: str, tensor: Tensor) -> None:
        if point.startswith("branch/"):
            ones = tensor.new_ones((len(tensor), *[1] * (tensor.ndim - 1)), requires_grad=True)
            scales[point] = ones
            handles.append(tensor.register_hook(lambda gradient: gradient * ones))

    handles: list[torch.utils.hooks.RemovableHandle] = []
    try:
        # The fused attention kernels cannot be differentiated twice.
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            output, streams = _show(model, inputs, "stream", scale)
            if not streams or not scales:
                raise ValueError("the model shows no stream/0 or no branch: there is no path to measure")
            (g,) = torch.autograd.grad(loss(output).sum(), streams[0], create_graph=True)
            unit = g.double().flatten(1)
            # Only shares are wanted: without its scale, a gradient that vanishes does not underflow.
            unit = unit / unit.detach().abs().amax(1, keepdim=True)
            energy = unit.square().sum(1)
            slopes = torch.autograd.grad(energy.sum() / 2, list(scales.values()))
    finally:
        for handle in handles:
            handle.remove()
    crossings = torch.full((len(energy), len(slopes)), torch.nan, dtype=torch.float64)
    total = torch.zeros(len(energy), dtype=torch.float64)
    for index, slope in enumerate(slopes):
        share = (slope.flatten() / energy.detach()[: len(slope)]).cpu()
        crossings[: len(slope), index] = share
        total[: len(slope)] += share
    point = "∂loss/∂stream/0"
    return PathLength(
        Reading("branches crossed by the gradient, mean over paths", point, ("models",), (), total.numpy()),
        Reading("share that crosses the branch", point, ("models", "branches"), tuple(scales), crossings.numpy()),
    )


def _show(
    model: nn.Module, inputs: Tensor, kind: str, also: Callable[[str, Tensor], None] = lambda point, tensor: None
) -> tuple[Tensor, list[Tensor]]:
    """The output of a forward pass and the tensors of one kind, in order, all still part of the graph."""
    live: dict[int, Tensor] = {}

    def keep(point: str, tensor: Tensor) -> None:
        if point.startswith(f"{kind}/"):
            live[int(point.split("/")[1])] = tensor
        also(point, tensor)

    with torch.enable_grad():
        output: Tensor = model(inputs, observe=keep)
    return output, [live[index] for index in sorted(live)]
