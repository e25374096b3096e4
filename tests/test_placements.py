"""Each placement against a reference written from its equation, in value and in derivative."""

import pytest
import torch
from torch.nn import functional as F

from resnorm_lib import norms, placements

WIDTH = 6


def norm(z):
    return F.layer_norm(z, (WIDTH,))


def branch(z):
    return torch.tanh(z @ MATRIX)


MATRIX = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
X = torch.randn(WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
REFERENCE = {
    "residual": lambda x: x + torch.tanh(x @ MATRIX),
    "pre": lambda x: x + torch.tanh(F.layer_norm(x, (WIDTH,)) @ MATRIX),
    "post": lambda x: F.layer_norm(x + torch.tanh(x @ MATRIX), (WIDTH,)),
}


EQUATIONS = {
    "residual": r"x_{l+1} = x_l + F_l(x_l)",
    "pre": r"x_{l+1} = x_l + F_l(\mathrm{N}(x_l))",
    "post": r"x_{l+1} = \mathrm{N}(x_l + F_l(x_l))",
}


def test_every_row_has_a_reference():
    assert placements.PLACEMENTS.keys() == REFERENCE.keys()


@pytest.mark.parametrize("name", placements.PLACEMENTS)
def test_value_and_jacobian(name):
    block = lambda x: placements.get(name).combine(x, branch, norm)  # noqa: E731
    assert torch.allclose(block(X), REFERENCE[name](X), rtol=1e-14)
    jacobian = torch.autograd.functional.jacobian
    assert torch.allclose(jacobian(block, X), jacobian(REFERENCE[name], X), atol=1e-14)


def silent_jacobian(name):
    """Derivative of a block whose branch is zero."""
    return torch.autograd.functional.jacobian(lambda x: placements.get(name).combine(x, lambda z: 0 * z, norm), X)


@pytest.mark.parametrize("name", placements.PLACEMENTS)
def test_zero_branch(name):
    """A silent block is the identity, or the norm alone where the norm stands on the stream."""
    expected = norms.jacobian(X, "layer_norm") if name == "post" else torch.eye(WIDTH, dtype=torch.float64)
    assert torch.allclose(silent_jacobian(name), expected, atol=1e-14)


@pytest.mark.parametrize("name", placements.PLACEMENTS)
def test_row_is_complete(name):
    row = placements.get(name)
    assert row.name == name
    assert row.title and row.source
    assert row.equation.startswith("x_{l+1} =")
    assert row.equation == EQUATIONS[name]
    assert row.final_norm == (name == "pre")


def test_unknown_placement():
    with pytest.raises(ValueError, match="'sandwhich' is unknown; use one of residual, pre, post"):
        placements.get("sandwhich")
