"""Each placement against a block written from its source's equation, in value and in derivative; and its constants."""

import dataclasses
import math

import pytest
import torch
from blocks_by_hand import BLOCKS, NO_FINAL_NORM, STREAMS, enter, leave, start
from torch.nn import functional as F

from resnorm_lib import norms, placements
from resnorm_lib.placements import Site

torch.set_num_threads(1)  # the matrices are small: a second thread costs more than it does

WIDTH, LAYERS = 6, 8
ALL = list(placements.PLACEMENTS)


def noise(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, MATRIX = noise(WIDTH, seed=1), noise(WIDTH, WIDTH, seed=0)
GAINS = 1 + 0.3 * noise(2, WIDTH, seed=2)


def norm(z, slot=0):
    """A norm with gains of its own in each slot, and an ε so large that a factor before it shows."""
    return F.layer_norm(z, (WIDTH,), eps=0.1) * GAINS[slot]


def branch(z):
    return torch.tanh(z @ MATRIX)


def sites():
    """A branch in the first, in the second and in a late layer."""
    return [Site(index, 2 * LAYERS, 2, WIDTH) for index in (0, 3, 13)]


def numbers(name, site):
    """The numbers at the site, the learnt ones moved away from where they start."""
    row = placements.get(name)
    learnt = {key: value + 0.3 * noise(*value.shape, seed=9) for key, value in row.learnt(site).items()}
    return {**row.fixed(site), **learnt}, learnt


def state(name, seed=3):
    """A stream, or unequal streams."""
    return noise(STREAMS[name], WIDTH, seed=seed) if name in STREAMS else X


def test_every_row_has_a_block_written_by_hand():
    assert BLOCKS.keys() == placements.PLACEMENTS.keys(), "write the new row's block in blocks_by_hand.py"


@pytest.mark.parametrize("site", sites(), ids=lambda site: f"layer{site.layer}")
@pytest.mark.parametrize("name", ALL)
def test_value_and_jacobian(name, site):
    row, (s, learnt) = placements.get(name), numbers(name, site)
    block = lambda x: row.combine(x, branch, norm, s)
    by_hand = lambda x: BLOCKS[name](x, branch, norm, learnt, site.layer, LAYERS)
    x, jacobian = state(name), torch.autograd.functional.jacobian
    assert torch.allclose(block(x), by_hand(x), rtol=1e-13, atol=1e-14)
    assert torch.allclose(jacobian(block, x), jacobian(by_hand, x), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", ALL)
def test_ends_of_the_stack(name):
    row = placements.get(name)
    assert torch.equal(row.start(X), enter(name, X))
    assert row.start(noise(2, 3, WIDTH, seed=4)).shape == (2, 3, *([row.streams] if row.streams > 1 else []), WIDTH)
    x = state(name)
    left = row.finish(x, norm) if row.final_norm else x
    assert torch.allclose(left, leave(name, x, norm), rtol=1e-14)
    assert row.final_norm == (name not in NO_FINAL_NORM)


@pytest.mark.parametrize("name", ALL)
def test_zero_branch(name):
    """A silent block leaves the stream, norms it, or leaves nothing, as its row says; in value and in derivative."""
    row, site = placements.get(name), Site(0, 2, 2, WIDTH)
    s = row.numbers(site)
    silent = lambda x: row.combine(x, lambda z: 0 * z, norm, s)
    skip = s.get("alpha", 1.0)
    expected = {
        "identity": lambda x: x,
        "norm": lambda x: norm(skip * x),
        "first norm": lambda x: torch.stack([norm(x[0]), x[1]]),
        "zero": lambda x: 0 * x,
    }[row.silent]
    x = row.start(X).clone()
    assert torch.allclose(silent(x), expected(x), atol=1e-13)
    if name != "manifold_hyper_connections":  # there only equal streams are left as they are
        jacobian = torch.autograd.functional.jacobian
        assert torch.allclose(jacobian(silent, x), jacobian(expected, x), atol=1e-13)


def test_zero_branch_of_post_norm_is_the_norms_own_jacobian():
    bare = lambda z: F.layer_norm(z, (WIDTH,))
    jacobian = torch.autograd.functional.jacobian(
        lambda x: placements.get("post").combine(x, lambda z: 0 * z, bare), X
    )
    assert torch.allclose(jacobian, norms.jacobian(X, "layer_norm"), atol=1e-14)


def test_a_negative_skip_flips_the_sign():
    row = placements.get("deepnorm")
    plus, minus = (row.combine(X, lambda z: 0 * z, norm, {"alpha": alpha}) for alpha in (2.0, -2.0))
    assert torch.allclose(plus, -minus) and plus.abs().max() > 0.1


def test_deepnorm_remembers_its_input_only_with_alpha_on_the_stream():
    """50 layers of two linear one-matrix branches, d = 1024: the cosine of output and input is (1 + β²/α²)^(-50) ≈ 0.78."""
    width, count = 1024, 100
    row, site = placements.get("deepnorm"), Site(0, count, 2, width)
    generator = torch.Generator().manual_seed(0)
    bare = lambda z: F.layer_norm(z, (width,))
    x = torch.randn(width, generator=generator)
    right = wrong = x
    matrix = torch.randn(width, width, generator=generator) * row.gain("feed_forward_out", site) / width**0.5
    for _ in range(count):  # a permutation and signs of its own make each branch a fresh matrix
        order = torch.randperm(width, generator=generator)
        signs = torch.randint(2, (width,), generator=generator) * 2.0 - 1
        linear = lambda z: signs * (z @ matrix)[order]  # noqa: B023
        right = row.combine(right, linear, bare, row.numbers(site))
        wrong = bare(wrong + site.count**0.25 * linear(wrong))
    assert F.cosine_similarity(right, x, 0).item() == pytest.approx(0.78, abs=0.04)
    assert abs(F.cosine_similarity(wrong, x, 0).item()) < 4 / width**0.5


@pytest.mark.parametrize("layers", [2, 6, 50])
@pytest.mark.parametrize("name", ALL)
def test_initialisation_of_each_role(name, layers):
    site = Site(0, 2 * layers, 2, 64)
    for role in placements.ROLES:
        gain = placements.get(name).gain(role, site)
        assert gain == pytest.approx(start(name, role, layers), rel=1e-12), role


def test_deepnorm_of_an_encoder_decoder():
    """The values of a 6-layer encoder with an 18-layer decoder, from the formulas in decimal."""
    site = Site(0, 12, 2, 1, partner=18)
    row = placements.get("deepnorm_encoder")
    assert row.fixed(site)["alpha"] == pytest.approx(0.81 * (6**4 * 18) ** 0.0625)
    assert row.gain("value", site) == pytest.approx(0.87 / (6**4 * 18) ** 0.0625)
    assert row.gain("query", site) == row.gain("key", site) == row.gain("head", site) == 1


@pytest.mark.parametrize("layers, value", [(18, 0.1), (19, 1e-5), (24, 1e-5), (25, 1e-6)])
def test_layerscale_starts_by_depth(layers, value):
    start_ = placements.get("layerscale").learnt(Site(0, 2 * layers, 2, 3))["c"]
    assert start_.tolist() == [value] * 3


@pytest.mark.parametrize("name, value", [("rezero", 0), ("skipinit", 0), ("fixup", 1)])
def test_learnt_multipliers_start(name, value):
    assert placements.get(name).numbers()["c"] == value
    assert placements.get(name).shared == (name == "rezero")


def test_optimiser_scaling():
    site = Site(0, 32, 2, 1, base=4)  # four times as deep as where it was tuned
    mup, complete = placements.get("depth_mup"), placements.get("completep")
    assert (mup.rates("adam", site).learning_rate, mup.rates("adam", site).eps) == (0.5, 1)
    assert mup.rates("sgd", site).learning_rate == 1
    assert (complete.rates("adam", site).learning_rate, complete.rates("adam", site).eps) == (1, 0.25)
    assert (mup.fixed(site)["c"], complete.fixed(site)["c"]) == (0.5, 0.25)
    with pytest.raises(ValueError, match="'sgd' has no rule in CompleteP: use 'adam'"):
        complete.rates("sgd", site)


def test_hyper_connections_start_as_pre_norm():
    """Each stream carries the pre-norm stream, at any depth and for each stream that is read."""
    for name in ("hyper_connections", "manifold_hyper_connections"):
        row, x = placements.get(name), X
        streams = row.start(X)
        for index in range(6):
            streams = row.combine(streams, branch, norm, row.numbers(Site(index, 6, 2, WIDTH)))
            x = placements.get("pre").combine(x, branch, norm)
        assert torch.allclose(streams, x.expand(4, -1), atol=1e-12)
        assert torch.allclose(row.finish(streams, norm), norm(4 * x), atol=1e-12)


def test_the_manifold():
    """Rows sum to 1 exactly, columns to the Sinkhorn tolerance; products of such matrices merge the streams."""
    matrix = placements.sinkhorn(noise(5, 4, 4, seed=0))
    assert (matrix > 0).all()
    assert torch.allclose(matrix.sum(-1), torch.ones(5, 4, dtype=torch.float64), atol=1e-15)
    assert torch.allclose(matrix.sum(-2), torch.ones(5, 4, dtype=torch.float64), atol=1e-6)
    assert torch.isfinite(placements.sinkhorn(1e3 * noise(4, 4, seed=1))).all()
    second = torch.linalg.svdvals(torch.linalg.multi_dot([*placements.sinkhorn(noise(32, 4, 4, seed=2))]))
    assert second[0] == pytest.approx(1, abs=1e-6) and second[1] < 1e-6


@pytest.mark.parametrize("name", ALL)
def test_row_is_complete(name):
    row = placements.get(name)
    assert row.name == name
    assert row.title and row.source and row.where and row.constants
    assert row.equation.startswith(("x_{l+1} =", "X_{l+1} ="))
    assert ("\\mathrm{N}" in row.equation) == (row.norms > 0)
    assert ("'" in row.equation) == (row.norms > 1)
    site = Site(0, 8, 2, 4)
    assert (row.constants == "none") == (not row.numbers(site) and all(row.gain(role, site) == 1 for role in placements.ROLES))
    assert row.rates("adam", site) == placements.Rates() or "Adam" in row.constants


def test_titles_and_names_are_unique():
    assert len({row.title for row in placements.PLACEMENTS.values()}) == len(ALL)


def test_layers_and_branches():
    assert [Site(index, 6, 2).layer for index in range(6)] == [1, 1, 2, 2, 3, 3]
    assert (Site(5, 6, 2).layers, Site(5, 6, 1).layers, Site(5, 6, 1).layer) == (3, 6, 6)


def test_sub_ln_of_one_branch():
    with pytest.raises(ValueError, match="'sub_ln' starts with zero weights.*give at least two"):
        placements.get("sub_ln").gain("value", Site())
    assert placements.get("sub_ln").gain("value", Site(0, 2)) == pytest.approx(math.log(2) ** 0.5)


def test_unknown_placement():
    with pytest.raises(ValueError, match="'sandwhich' is unknown; use one of residual, pre, post"):
        placements.get("sandwhich")


def test_rows_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        placements.get("pre").name = "post"


EQUATIONS = {
    "residual": r"x_{l+1} = x_l + F_l(x_l)",
    "pre": r"x_{l+1} = x_l + F_l(\mathrm{N}(x_l))",
    "post": r"x_{l+1} = \mathrm{N}(x_l + F_l(x_l))",
}


@pytest.mark.parametrize("name", EQUATIONS)
def test_the_equations_of_the_first_chapter(name):
    assert placements.get(name).equation == EQUATIONS[name]
    assert placements.get(name).final_norm == (name == "pre")
