"""The norms' derivatives against automatic differentiation, and the norms against definitions written out."""

import pytest
import torch

from resnorm_lib import norms

DIFFERENTIABLE = ("layer_norm", "rms_norm")


def rows(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def by_definition(row, kind, eps):
    """One token, in plain Python numbers."""
    x = row.tolist()
    mean = sum(x) / len(x) if kind == "layer_norm" else 0.0
    variance = sum((value - mean) ** 2 for value in x) / len(x)
    return torch.tensor([(value - mean) / (variance + eps) ** 0.5 for value in x], dtype=torch.float64)


@pytest.mark.parametrize("kind", DIFFERENTIABLE)
@pytest.mark.parametrize("size", [1e-6, 1e-3, 1.0, 1e3])
def test_apply_has_biased_variance_and_eps_inside_the_root(kind, size):
    for row in size * rows(5, 3):
        assert torch.allclose(norms.apply(row, kind, eps=1e-5), by_definition(row, kind, 1e-5), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", DIFFERENTIABLE)
def test_scale_is_what_apply_divides_by(kind):
    x = rows(4, 6)
    centred = x - x.mean(-1, keepdim=True) if kind == "layer_norm" else x
    assert torch.allclose(centred / norms.scale(x, kind, eps=0.1), norms.apply(x, kind, eps=0.1), rtol=1e-13)


@pytest.mark.parametrize("kind", DIFFERENTIABLE)
@pytest.mark.parametrize("eps", [0.0, 1e-5, 0.3])
@pytest.mark.parametrize("width", [2, 3, 16])
def test_jacobian_is_autograds(kind, eps, width):
    gain = rows(width, seed=1)
    for row in rows(3, width):
        exact = torch.autograd.functional.jacobian(lambda z: norms.apply(z, kind, eps=eps, weight=gain), row)
        assert torch.allclose(norms.jacobian(row, kind, eps=eps, weight=gain), exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind, removed", [("layer_norm", 2), ("rms_norm", 1)])
def test_projector(kind, removed):
    x = rows(4, 9)
    p = norms.projector(x, kind)
    assert torch.allclose(p @ p, p, atol=1e-14)
    assert torch.allclose(p, p.mT, atol=1e-15)
    assert torch.linalg.matrix_rank(p).tolist() == [9 - removed] * 4
    assert torch.allclose(p / norms.scale(x, kind, eps=0.0).unsqueeze(-1), norms.jacobian(x, kind, eps=0.0), atol=1e-14)


def test_jacobian_of_leading_axes_is_that_of_each_row():
    x = rows(2, 3, 5)
    stacked = norms.jacobian(x, "layer_norm")
    assert stacked.shape == (2, 3, 5, 5)
    assert torch.equal(stacked[1, 2], norms.jacobian(x[1, 2], "layer_norm"))


def test_large_mean_and_constant_rows_in_float32():
    """A one-pass variance fails here: the output would be off by tenths, or not a number."""
    x = (rows(8, 64) + 1e4).float()
    exact = norms.apply(x.double(), "layer_norm")
    assert (norms.apply(x, "layer_norm").double() - exact).abs().max() < 0.01
    assert torch.equal(norms.apply(torch.full((2, 64), 1e4), "layer_norm"), torch.zeros(2, 64))


def test_none_leaves_the_input_and_applies_the_gain():
    x = rows(2, 4)
    assert norms.apply(x, "none") is x
    assert torch.equal(norms.apply(x, "none", weight=torch.full((4,), 3.0)), 3 * x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtype_is_kept(dtype):
    assert norms.apply(rows(2, 4, dtype=dtype), "rms_norm").dtype == dtype


@pytest.mark.parametrize("call", [norms.apply, norms.scale, norms.jacobian, norms.projector])
def test_unknown_kind(call):
    with pytest.raises(ValueError, match="'batch_norm'.*use"):
        call(rows(2, 4), "batch_norm")


@pytest.mark.parametrize("call", [norms.apply, norms.scale, norms.jacobian])
@pytest.mark.parametrize("eps", [-1, float("nan"), float("inf")])
def test_bad_eps(call, eps):
    with pytest.raises(ValueError, match=f"eps = {eps}"):
        call(rows(2, 4), "layer_norm", eps=eps)


@pytest.mark.parametrize("call", [norms.apply, norms.scale, norms.jacobian])
def test_default_eps_is_torchs(call):
    assert torch.equal(call(rows(2, 4), "layer_norm"), call(rows(2, 4), "layer_norm", eps=torch.nn.LayerNorm(4).eps))


def test_one_token_without_direction_is_enough_to_stop():
    with pytest.raises(ValueError, match="no direction"):
        norms.projector(torch.stack([CONSTANT, torch.arange(7.0, dtype=torch.float64)]), "layer_norm")


CONSTANT = torch.full((7,), 0.1, dtype=torch.float64)  # its computed mean is not exactly 0.1


@pytest.mark.parametrize("kind, x", [("layer_norm", CONSTANT), ("rms_norm", torch.zeros(4))])
def test_projector_needs_a_direction(kind, x):
    with pytest.raises(ValueError, match="no direction"):
        norms.projector(x, kind)
