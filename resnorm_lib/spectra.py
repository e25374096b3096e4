"""Singular values of long products of matrices, at any spread, and how many directions they leave.

Logarithms throughout: the spread of a product outgrows float64 long before its factors do.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["effective_rank", "log_singular_values", "participation_ratio"]

Floats = NDArray[np.float64]


def log_singular_values(factors: Tensor, method: Literal["qr", "svd"] = "qr", sweeps: int = 50) -> Tensor:
    """ln of the singular values of a product of square matrices: ``(..., factors, d, d)`` to ``(..., d)``, largest first.

    The product is factors[-1] ... factors[0]. ``-inf`` where a singular value cannot be told from zero.

    ``svd`` forms the product: exact, but only down to d·2⁻⁵² of the largest. ``qr`` never forms it, and has no such
    limit: it orthogonalises Q_l R_l = factor_l Q_{l-1} from the first factor to the last, which leaves a product of
    triangular matrices, transposes that, and repeats. ln σ_k is the sum of ln |(R_l)_kk|. After one sweep this is the
    estimate used for Lyapunov exponents; further sweeps turn it into the singular values. The error in ln σ falls as
    (σ_{k+1}/σ_k)^(2·sweeps): fast where the spread is large, while values within a factor 1 + 1/sweeps of each other
    are mixed, so that no error exceeds about 1/sweeps. Sweeps stop early when nothing moves.

    Raises:
        ValueError: another method, fewer than one sweep, matrices that are not square, or numbers that are not finite.

    Source: Stewart 1997, A new algorithm for the SVD of a long product of matrices and the stability of products
    (Rutishauser's Cholesky LR iteration on the factors), Electronic Transactions on Numerical Analysis 5, 29–47.
    """
    if factors.ndim < 3 or factors.shape[-1] != factors.shape[-2] or 0 in factors.shape:
        raise ValueError(f"factors has shape {tuple(factors.shape)}: give (..., factors, d, d)")
    if method not in ("qr", "svd"):
        raise ValueError(f"method = {method!r} is unknown; use 'qr' or 'svd'")
    if sweeps < 1:
        raise ValueError(f"sweeps = {sweeps} is not allowed: give at least 1")
    if not torch.isfinite(factors).all():
        raise ValueError("factors holds a number that is not finite: leave diverged models out")
    parts = list(factors.cpu().double().unbind(-3))
    resolution = factors.shape[-1] * torch.finfo(torch.float64).eps
    if method == "svd":
        product = parts[0]
        for part in parts[1:]:
            product = part @ product
        values = torch.linalg.svdvals(product)
        exact: Tensor = values.where(values > resolution * values[..., :1], 0.0).log()
        return exact
    floors = [resolution * torch.linalg.matrix_norm(part, 2)[..., None] for part in parts]
    logs = torch.zeros((), dtype=torch.float64)
    for _ in range(sweeps):
        triangles, sizes = [], []
        basis = torch.eye(factors.shape[-1], dtype=torch.float64)
        for part, floor in zip(parts, floors, strict=True):
            basis, triangle = torch.linalg.qr(part @ basis)
            diagonal = triangle.diagonal(dim1=-2, dim2=-1).abs()
            triangles.append(triangle)
            sizes.append(diagonal.where(diagonal > floor, 0.0).log())
        before, logs = logs, torch.stack(sizes).sum(0)
        if torch.allclose(logs, before, rtol=0, atol=1e-13 * len(parts)):
            break
        parts, floors = [triangle.mT for triangle in reversed(triangles)], floors[::-1]
    ordered: Tensor = logs.sort(-1, descending=True).values
    return ordered


def effective_rank(log_singular_values: Floats) -> Floats:
    """exp of the entropy of the singular values, normalised to sum to one: ``(..., directions)`` to ``(...)``.

    exp(-Σ p_k ln p_k), p_k = σ_k/Σσ, from ln σ, so that any spread is in reach. Between 1 and the rank.

    Source: Roy and Vetterli 2007, The effective rank: a measure of effective dimensionality.
    """
    p = _normalised(log_singular_values)
    rank: Floats = np.exp(-(p * np.log(np.where(p > 0, p, 1.0))).sum(-1))
    return rank


def participation_ratio(log_singular_values: Floats) -> Floats:
    """(Σσ²)²/Σσ⁴, another effective number of directions, from ln σ: ``(..., directions)`` to ``(...)``."""
    ratio: Floats = 1 / np.square(_normalised(2 * log_singular_values)).sum(-1)
    return ratio


def _normalised(logs: Floats) -> Floats:
    with np.errstate(invalid="ignore"):  # all zero or not finite: NaN
        weights = np.exp(logs - logs.max(-1, keepdims=True))
        normalised: Floats = weights / weights.sum(-1, keepdims=True)
    return normalised
