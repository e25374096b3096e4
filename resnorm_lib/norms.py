"""The exact derivatives of LayerNorm and RMSNorm.

The norms themselves are torch's: `apply` only names them. Every function works on the last axis,
of size ``width`` = d, and keeps any leading axes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["KINDS", "apply", "jacobian", "projector", "scale"]

KINDS = ("layer_norm", "rms_norm", "none", "dyt")
"""The kinds of norm, see `apply`."""


def _check_eps(eps: float) -> None:
    if not 0 <= eps < float("inf"):
        raise ValueError(f"eps = {eps} is not allowed: give zero or a small positive number")


def _centred(x: Tensor, kind: str) -> Tensor:
    if kind == "layer_norm":
        return x - x.mean(-1, keepdim=True)
    if kind == "rms_norm":
        return x
    raise ValueError(f"kind = {kind!r} is not a norm with a Jacobian here; use 'layer_norm' or 'rms_norm'")


def apply(
    x: Tensor, kind: str, *, eps: float = 1e-5, weight: Tensor | None = None, slope: Tensor | float = 0.5
) -> Tensor:
    """Normalise the last axis with torch's own function.

    ``layer_norm``: weight * (x - mean x) / sqrt(var x + eps), with the biased variance;
    ``rms_norm``: weight * x / sqrt(mean x² + eps); ``none``: weight * x; ``dyt``: weight * tanh(slope * x).

    Args:
        x: ``(..., width)``, any floating dtype; the result has the same shape and dtype.
        kind: one of `KINDS`.
        eps: added inside the square root.
        weight: gain, ``(width,)`` or broadcastable to ``x``; ``None`` for one.
        slope: of ``dyt`` alone, broadcastable to ``x``; learnt in a model, from 0.5.

    Raises:
        ValueError: unknown ``kind`` or negative ``eps``.

    Source: Ba et al. 2016, eq. 4 (arXiv 1607.06450); Zhang and Sennrich 2019, eq. 4 (arXiv 1910.07467);
    Zhu et al. 2025, section 4 (arXiv 2503.10622), for ``dyt``.
    """
    _check_eps(eps)
    if kind == "layer_norm":
        y = functional.layer_norm(x, x.shape[-1:], eps=eps)
    elif kind == "rms_norm":
        y = functional.rms_norm(x, x.shape[-1:], eps=eps)
    elif kind == "dyt":
        y = torch.tanh(slope * x)
    elif kind == "none":
        y = x
    else:
        raise ValueError(f"kind = {kind!r} is not a norm; use one of {', '.join(KINDS)}")
    return y if weight is None else y * weight


def scale(x: Tensor, kind: str, *, eps: float = 1e-5) -> Tensor:
    """What the norm divides by: s = sqrt(var x + eps) for LayerNorm, sqrt(mean x² + eps) for RMSNorm.

    Two passes, biased variance. Shapes: ``(..., width)`` to ``(..., 1)``.

    Raises:
        ValueError: unknown ``kind`` or negative ``eps``.
    """
    _check_eps(eps)
    result: Tensor = (_centred(x, kind).square().mean(-1, keepdim=True) + eps).sqrt()
    return result


def projector(x: Tensor, kind: str) -> Tensor:
    """The orthogonal projector that the norm's derivative is made of.

    P = I - 1 1ᵀ/d - u uᵀ, with u the unit vector along x - mean x (LayerNorm), or
    P = I - u uᵀ, with u along x (RMSNorm). Rank d - 2, or d - 1.

    Shapes: ``(..., width)`` to ``(..., width, width)``.

    Raises:
        ValueError: unknown ``kind``, or a vector without direction (constant for LayerNorm, zero for RMSNorm).

    Used in ``ch_layernorm_projector``.
    """
    centred = _centred(x, kind)
    length = torch.linalg.vector_norm(centred, dim=-1, keepdim=True)
    rounding = x.shape[-1] * torch.finfo(x.dtype).eps * torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    if (length <= rounding).any():
        raise ValueError("x has no direction to project out: for LayerNorm it must not be constant, for RMSNorm not zero")
    unit = centred / length
    result: Tensor = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device) - unit.unsqueeze(-1) * unit.unsqueeze(-2)
    return result - 1 / x.shape[-1] if kind == "layer_norm" else result


def jacobian(x: Tensor, kind: str, *, eps: float = 1e-5, weight: Tensor | None = None) -> Tensor:
    """The exact derivative of `apply`: entry (i, j) is ∂y_i/∂x_j.

    J = diag(weight) (1/s) (C - c cᵀ/(d s²)), with c = x - mean x, C = I - 1 1ᵀ/d for LayerNorm and
    c = x, C = I for RMSNorm; s as in `scale`. With eps = 0 this is diag(weight) P/s.

    Shapes: ``(..., width)`` to ``(..., width, width)``; ``weight`` is ``(width,)``.

    Raises:
        ValueError: unknown ``kind`` or negative ``eps``.

    Source: Xiong et al. 2020, appendix, proof of Lemma 3 (arXiv 2002.04745), for eps = 0.
    Used in ``ch_layernorm_projector``.
    """
    d = x.shape[-1]
    centred, s = _centred(x, kind), scale(x, kind, eps=eps).unsqueeze(-1)
    result = torch.eye(d, dtype=x.dtype, device=x.device) - centred.unsqueeze(-1) * centred.unsqueeze(-2) / (d * s**2)
    if kind == "layer_norm":
        result = result - 1 / d
    result = result / s
    return result if weight is None else weight.unsqueeze(-1) * result
