"""The batched models against plain ones, their initialisation, and independence of the models in a batch."""

import copy
import dataclasses
import math
import random

import numpy as np
import pytest
import torch
from blocks_by_hand import BLOCKS, enter, leave, start
from torch.nn import functional as F

from resnorm_lib import models, norms, placements

torch.set_num_threads(1)  # the matrices are small: a second thread costs more than it does

CONFIG = models.TransformerConfig(vocabulary=7, length=5, width=8, depth=2, heads=2, hidden=12, eps=1e-5)
MLP = models.MLPConfig(inputs=5, width=6, hidden=9, outputs=3, depth=2)
ALL = list(placements.PLACEMENTS)


def generators(seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def build(seeds=(0, 1), dtype=torch.float64, **changes):
    return models.TransformerLM(dataclasses.replace(CONFIG, **changes), generators(seeds), dtype)


def build_mlp(*changes, seeds=None, dtype=torch.float64):
    configs = [dataclasses.replace(MLP, **change) for change in changes]
    return models.ResidualMLP(configs, generators(seeds or range(len(configs))), dtype)


def tokens(count, sequences=2, length=5):
    return torch.from_numpy(np.random.default_rng(0).integers(7, size=(count, sequences, length)))


def inputs(count, batch=4, size=5):
    return torch.randn(count, batch, size, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def disturb(model):
    """Move every parameter that does not start at random: a swapped, forgotten or shared one shows."""
    generator = torch.Generator().manual_seed(5)
    drawn = {id(parameter) for parameter in model.weights.values()}
    with torch.no_grad():
        for parameter in model.parameters():
            zero = (parameter == 0).all()
            if id(parameter) not in drawn or zero:
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return model


def norm_by_hand(model, x, key, which):
    kind, eps, gain = model.configs[0].norm, model.configs[0].eps, model.gains[key][which].flatten()
    if kind == "layer_norm":
        y = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + eps).sqrt()
    elif kind == "rms_norm":
        y = x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
    elif kind == "dyt":
        y = torch.tanh(model.slopes[key][which].flatten() * x)
    else:
        y = x
    y = y * gain
    return y + model.biases[key][which].flatten() if key in model.biases else y


def learnt_by_hand(model, branch, which):
    owner = 2 * (branch // 2) if model.placement.name == "rezero" and model.per_layer == 2 else branch
    suffix = f"_{owner}"
    return {name.removesuffix(suffix): p[which].squeeze() for name, p in model.learnt.items() if name.endswith(suffix)}


def sequence_block(model, x, F_, branch, which):
    """One block for a whole sequence ``(tokens, ...)``: stacked, since the hand-written blocks take one token."""
    name, layers = model.placement.name, model.configs[which].depth
    norm = lambda z, slot=0: norm_by_hand(model, z, f"{branch}_{slot}", which)
    return BLOCKS[name](x, F_, norm, learnt_by_hand(model, branch, which), branch // 2 + 1, layers)


def plain(model, which, sequence):
    """One model on one sequence, with explicit loops over heads and positions."""
    c, w = model.configs[which], {name: value[which] for name, value in model.weights.items() if which < len(value)}
    row = model.placement

    def shift(z, branch, place):
        return z + model.shifts[f"{branch}_{place}"][which].flatten() if row.scalar_biases else z

    def inner(z, branch):
        return norm_by_hand(model, z, f"{branch}_inner", which) if row.inner_norm else z

    def compare(q, k, layer):
        size = c.width // c.heads
        if c.qk_norm == "l2":
            return model.qk[f"logit_gain_{layer}"][which].flatten() * (q / q.norm()) @ (k / k.norm())
        if c.qk_norm != "none":
            parts = []
            for part, z in (("query", q), ("key", k)):
                z = z - z.mean() if c.qk_norm == "layer_norm" else z
                z = z / (z.square().mean() + c.eps).sqrt()
                parts.append(z * model.qk[f"{part}_gain_{layer}"][which].flatten())
            q, k = parts
        return q @ k / size**0.5

    def attention(x, branch):
        layer = branch // 2
        q, k, v = (shift(x, branch, 0) @ w[f"query_key_value_{layer}"]).chunk(3, dim=-1)
        size, out = c.width // c.heads, []
        for head in range(c.heads):
            part = slice(head * size, (head + 1) * size)
            rows = []
            for t in range(len(x)):
                last = t + 1 if c.causal else len(x)
                scores = torch.stack([compare(q[t, part], k[s, part], layer).squeeze() for s in range(last)])
                rows.append(torch.softmax(scores, 0) @ v[:last, part])
            out.append(torch.stack(rows))
        return inner(shift(torch.cat(out, -1), branch, 1), branch) @ w[f"attention_out_{layer}"]

    def feed_forward(x, branch):
        hidden = shift(x, branch, 0) @ w[f"feed_forward_in_{branch // 2}"]
        hidden = inner(shift(torch.relu(shift(hidden, branch, 1)), branch, 2), branch)
        return hidden @ w[f"feed_forward_out_{branch // 2}"]

    # Streams come first here, so that a block written for one token serves the whole sequence.
    x = enter(row.name, w["embedding"][sequence] + w["position"][: len(sequence)])
    for branch in range(2 * c.depth):
        part = (attention, feed_forward)[branch % 2]
        x = sequence_block(model, x, lambda z: c.multiplier * part(z, branch), branch, which)  # noqa: B023
    return leave(row.name, x, lambda z: norm_by_hand(model, z, "final", which)) @ w["head"]


def gradients(loss, model):
    return torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)


def compare_with_plain(model):
    data = tokens(model.models, sequences=1, length=4)
    logits = model(data)
    by_hand = torch.stack([torch.stack([plain(model, m, row) for row in data[m]]) for m in range(model.models)])
    assert torch.allclose(logits, by_hand, rtol=1e-11, atol=1e-11)
    mine, theirs = gradients(logits.square().mean(), model), gradients(by_hand.square().mean(), model)
    for (name, _), a, b in zip(model.named_parameters(), mine, theirs, strict=True):
        assert a is not None and b is not None, name
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-10), name


@pytest.mark.parametrize("placement", ALL)
def test_forward_and_gradients_are_those_of_a_plain_model(placement):
    compare_with_plain(disturb(build(placement=placement)))


@pytest.mark.parametrize(
    "changes",
    [
        *({"placement": placement, "norm": norm} for placement in ("pre", "post") for norm in norms.KINDS[1:]),
        {"qk_norm": "rms_norm"},
        {"qk_norm": "layer_norm", "causal": False},
        {"qk_norm": "l2"},
        {"placement": "post", "multiplier": 0.3},
    ],
    ids=str,
)
def test_norms_and_attention_are_those_of_a_plain_model(changes):
    compare_with_plain(disturb(build(**changes)))


def test_a_new_placement_is_one_row(monkeypatch):
    row = dataclasses.replace(
        placements.get("pre"), name="new", increment=lambda x, branch, norm, s: s["c"] * norm(branch(norm(x)), 1), norms=2,
        learnt=lambda site: {"c": torch.full((site.width,), 1 / site.count)},
    )  # fmt: skip
    monkeypatch.setitem(placements.PLACEMENTS, "new", row)
    monkeypatch.setitem(BLOCKS, "new", lambda x, F_, N, learnt, layer, layers: x + learnt["c"] * N(F_(N(x)), 1))
    compare_with_plain(disturb(build(placement="new")))
    assert build_mlp({"placement": "new"})(inputs(1)).shape == (1, 4, 3)


def test_models_of_unequal_depth_share_a_batch():
    """Depths 3, 2 and 1 together: constants, values and gradients are each model's own."""
    for placement in ("deepnorm", "mix_ln", "rezero"):
        depths = (4, 2, 1)
        configs = [dataclasses.replace(CONFIG, depth=depth, placement=placement) for depth in depths]
        compare_with_plain(disturb(models.TransformerLM(configs, generators(range(3)), torch.float64)))


MLP_BATCH = [{"depth": 4, "multiplier": 0.5}, {"depth": 4}, {"depth": 2}, {"depth": 1, "multiplier": 2.0}]


@pytest.mark.parametrize("activation", models.ACTIVATIONS)
def test_mlp_by_hand(activation):
    model = disturb(build_mlp(*({**change, "activation": activation} for change in MLP_BATCH)))
    x, phi = inputs(4), {"identity": lambda z: z, "gelu": F.gelu, "silu": F.silu}.get(activation) or getattr(torch, activation)
    out = model(x)
    for m, change in enumerate(MLP_BATCH):
        y = x[m] @ model.weights["stem"][m]
        for k in range(change["depth"]):
            hidden = phi(norm_by_hand(model, y, f"{k}_0", m) @ model.weights[f"feed_forward_in_{k}"][m])
            y = y + change.get("multiplier", 1) * hidden @ model.weights[f"feed_forward_out_{k}"][m]
        y = norm_by_hand(model, y, "final", m) @ model.weights["head"][m]
        assert torch.allclose(out[m], y, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("placement", ALL)
def test_mlp_in_a_batch_is_the_mlp_alone(placement):
    """Also in gradient, and to the bit in the weights."""
    changes = [{"depth": depth, "placement": placement} for depth in (3, 3, 2)]
    together, x = disturb(build_mlp(*changes)), inputs(3)
    loss = together(x).square().sum()
    found = dict(zip([n for n, _ in together.named_parameters()], gradients(loss, together), strict=True))
    for m, change in enumerate(changes):
        alone = build_mlp(change, seeds=[m])
        for name, parameter in together.weights.items():
            if m < len(parameter) and placement != "fixup":
                assert torch.equal(parameter[m], alone.weights[name][0]), name
        state = {name: p[m : m + 1] for name, p in together.state_dict().items() if m < len(p)}
        alone.load_state_dict(state)
        out = alone(x[m : m + 1])
        assert torch.allclose(out[0], together(x)[m], rtol=1e-12, atol=1e-13)
        for (name, _), gradient in zip(alone.named_parameters(), gradients(out.square().sum(), alone), strict=True):
            assert torch.allclose(gradient[0], found[name][m], rtol=1e-10, atol=1e-12), name


@pytest.mark.parametrize("placement", ALL)
def test_every_parameter_moves_the_output_and_gets_a_gradient(placement):
    """A gain that was made and never applied would be found here: alone, then with each QK-norm."""
    for changes in ({}, {"norm": "dyt"}, *({"qk_norm": kind} for kind in models.QK_NORMS[1:])):
        if changes and placement != "pre":
            continue
        model = disturb(build(placement=placement, **{"width": 4, "hidden": 6} | changes))
        data = tokens(2, sequences=1, length=3)
        F.cross_entropy(model(data).flatten(0, 2), data.roll(1).flatten()).backward()
        before = model(data).detach()
        # Equal streams at the bottom and the sum of streams at the top do not see a doubly stochastic matrix.
        unseen = {"learnt.mix_0", "learnt.mix_3"} if placement == "manifold_hyper_connections" else set()
        for name, parameter in model.named_parameters():
            if name in unseen:
                continue
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
            assert len(parameter) == 2, name
            with torch.no_grad():
                kept = parameter.clone()
                parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
                assert (model(data) - before).abs().max() > 1e-9, name
                parameter.copy_(kept)


def test_the_future_is_not_seen():
    for causal in (True, False):
        model, data = build(causal=causal), tokens(2)
        changed = data.clone()
        changed[..., -1] = (changed[..., -1] + 1) % 7
        assert torch.equal(model(data)[..., :-1, :], model(changed)[..., :-1, :]) == causal


def test_a_model_does_not_depend_on_its_companions():
    alone, together = build(seeds=(1,)), build(seeds=(0, 1, 2))
    for (name, a), (_, b) in zip(alone.weights.items(), together.weights.items(), strict=True):
        assert torch.equal(a[0], b[1]), name
    data = tokens(1)
    assert torch.allclose(alone(data)[0], together(data.expand(3, -1, -1))[1], atol=1e-13)


def test_a_deeper_model_begins_with_the_draws_of_a_shallower_one():
    deep, shallow = build_mlp({"depth": 3}, seeds=[7]), build_mlp({"depth": 1}, seeds=[7])
    for name, weight in shallow.weights.items():
        assert torch.equal(weight, deep.weights[name])


def test_global_random_state_is_untouched():
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    build(seeds=(0,))
    build_mlp({})
    assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())


@pytest.mark.parametrize("placement", ALL)
def test_initialisation_of_each_matrix(placement):
    """Found by reference and by nothing else: each of query, key and value has its own deviation."""
    depth, width, hidden = 3, 48, 96
    model = build(seeds=range(4), placement=placement, width=width, hidden=hidden, depth=depth, vocabulary=40, length=40)
    xavier = {
        "embedding": 1.0,
        "position": 1.0,
        "head": (2 / (width + 40)) ** 0.5,
        "feed_forward_in": (2 / (width + hidden)) ** 0.5,
        "feed_forward_out": (2 / (width + hidden)) ** 0.5,
    }
    for matrix in model.matrices:
        std = xavier.get(matrix.role, (1 / width) ** 0.5) * start(placement, matrix.role, depth)
        value = matrix.value.detach()
        assert value.std().item() == pytest.approx(std, rel=5 / (2 * value.numel()) ** 0.5, abs=1e-12), matrix.role
    assert [(m.role, m.layer) for m in model.matrices[:3]] == [("embedding", None), ("position", None), ("head", None)]
    inside = ["query", "key", "value", "attention_out", "feed_forward_in", "feed_forward_out"]
    assert [(m.role, m.layer) for m in model.matrices[3:]] == [(role, k) for k in range(depth) for role in inside]


def test_only_the_value_path_of_deepnorm_is_scaled():
    """With the same draws, the matrices that differ from pre-norm's are the four that the paper names, all by β."""
    mine, plain_ = build(placement="deepnorm").matrices, build(placement="pre").matrices
    ratios = {a.role: (a.value / b.value).unique().tolist() for a, b in zip(mine, plain_, strict=True)}
    for role, ratio in ratios.items():
        beta = 16**-0.25 if role in ("value", "attention_out", "feed_forward_in", "feed_forward_out") else 1.0
        assert ratio == pytest.approx([beta] * len(ratio), rel=1e-14), role


def test_mlp_initialisation():
    model = build_mlp(*[{"width": 64, "hidden": 96, "stem_gain": 2.0, "outer_gain": 0.5, "head_gain": 3.0}] * 4)
    stds = {"stem": 2 / 5**0.5, "feed_forward_in": (2 / 64) ** 0.5, "feed_forward_out": 0.5 / 96**0.5, "head": 3 / 64**0.5}
    for matrix in model.matrices:
        spread = 5 / (2 * matrix.value.numel()) ** 0.5
        assert matrix.value.std().item() == pytest.approx(stds[matrix.role], rel=spread), matrix.role


def test_matrix_reads_its_own_gradient():
    model, data = build(), tokens(2)
    assert model.matrices[3].gradient is None
    model(data).square().sum().backward()
    slab = model.weights["query_key_value_1"]
    query, key, value = (m for m in model.matrices if m.layer == 1 and m.role in ("query", "key", "value"))
    assert torch.equal(torch.cat([query.gradient, key.gradient, value.gradient], -1), slab.grad)
    assert value.value.data_ptr() == slab[..., 16:].data_ptr()


def test_a_copy_keeps_its_own_matrices():
    model = build()
    twin = copy.deepcopy(model)
    assert twin.matrices[0].parameter is twin.weights["embedding"]
    assert model.matrices[0].parameter is model.weights["embedding"]


def watched(model, data):
    seen = {}
    out = model(data, observe=lambda point, tensor: seen.__setitem__(point, tensor))
    return out, seen


def test_points_of_the_transformer():
    model, data = disturb(build(placement="sandwich", qk_norm="rms_norm")), tokens(2)
    out, seen = watched(model, data)
    assert torch.equal(out, model(data))
    names = [f"{name}/{k}" for k in range(2) for name in ("between", "attention", "attention_logits")]
    assert set(seen) == {*names, "logits", *(f"stream/{k}" for k in range(3)), *(f"branch/{k}" for k in range(4))}
    for k in range(2):
        assert torch.allclose(seen[f"stream/{k}"] + seen[f"branch/{2 * k}"], seen[f"between/{k}"])
        assert torch.allclose(seen[f"between/{k}"] + seen[f"branch/{2 * k + 1}"], seen[f"stream/{k + 1}"])
        weights, logits = seen[f"attention/{k}"], seen[f"attention_logits/{k}"]
        assert weights.shape == (2, 2, 2, 5, 5)
        assert torch.allclose(weights.sum(-1), torch.ones((), dtype=torch.float64))
        assert (logits[..., 0, 1:] == -torch.inf).all() and torch.isfinite(logits[..., -1, :]).all()
        value = (seen[f"stream/{k}"],)
        normed = model.norm(value[0], f"{2 * k}_0")
        v = (normed.flatten(1, 2) @ model.weights[f"query_key_value_{k}"]).view(2, 2, 5, 3, 2, 4)[:, :, :, 2].transpose(2, 3)
        mixed = (weights @ v).transpose(2, 3).reshape(2, 10, 8) @ model.weights[f"attention_out_{k}"]
        assert torch.allclose(model.norm(mixed.view(2, 2, 5, 8), f"{2 * k}_1"), seen[f"branch/{2 * k}"])
    assert seen["logits"] is out
    assert torch.autograd.grad(out.sum(), seen["stream/1"])[0].abs().sum() > 0


def test_points_of_the_mlp():
    model = disturb(build_mlp({"depth": 3, "multiplier": 0.5}, {"depth": 1}))
    out, seen = watched(model, inputs(2))
    assert set(seen) == {"logits", *(f"stream/{k}" for k in range(4)), *(f"branch/{k}" for k in range(3))}
    assert [len(seen[f"stream/{k}"]) for k in range(4)] == [2, 2, 1, 1]
    assert torch.allclose(seen["stream/0"] + seen["branch/0"], seen["stream/1"])
    assert torch.equal(seen["logits"], out)


@pytest.mark.parametrize("placement, streams", [("resi_dual", 2), ("hyper_connections", 4)])
def test_points_of_several_streams(placement, streams):
    _, seen = watched(build_mlp({"placement": placement}), inputs(1))
    assert seen["stream/1"].shape == (1, 4, streams, 6)
    assert seen["branch/1"].shape == (1, 4, 6)


def test_norm_slots():
    assert set(build(placement="pre").gains) == {"0_0", "1_0", "2_0", "3_0", "final"}
    assert set(build(placement="post").gains) == {"0_0", "1_0", "2_0", "3_0"}
    assert set(build(placement="sandwich", depth=1).gains) == {"0_0", "0_1", "1_0", "1_1", "final"}
    sub = build(placement="sub_ln", depth=1).gains
    assert (sub["0_inner"].shape, sub["1_inner"].shape) == ((2, 1, 1, 8), (2, 1, 1, 12))
    assert not build(norm="rms_norm").biases
    assert not build(placement="residual").gains
    assert build_mlp({}).gains["0_0"].shape == (1, 1, 6)


def test_the_second_norm_has_weights_of_its_own():
    model, data = build(placement="sandwich"), tokens(2)
    with torch.no_grad():
        model.gains["0_1"] *= 2
    changed = model(data)
    with torch.no_grad():
        model.gains["0_1"] /= 2
        model.gains["0_0"] *= 2
    assert not torch.allclose(changed, model(data))


def test_rezero_starts_as_the_identity():
    """Every singular value of the end-to-end Jacobian is 1, and the first gradient reaches the multipliers alone."""
    model, x = build_mlp({"placement": "rezero", "depth": 5}), inputs(1)
    _, seen = watched(model, x)
    assert torch.equal(seen["stream/0"], seen["stream/5"])
    model(x).square().sum().backward()
    assert all((m.gradient == 0).all() for m in model.matrices if m.layer is not None)
    assert all(c.grad.abs().sum() > 0 for c in model.learnt.values())
    assert len(build(placement="rezero").learnt) == 2 and len(build(placement="skipinit").learnt) == 4


def test_rates_reach_the_blocks_alone():
    configs = [dataclasses.replace(CONFIG, placement="depth_mup", depth=d) for d in (4, 1)]
    model = models.TransformerLM(configs, generators((0, 1)))
    rates = model.rates("adam")
    assert rates.keys() == dict(model.named_parameters()).keys()
    assert rates["weights.query_key_value_0"][0].tolist() == [0.5, 1]
    assert rates["gains.0_0"][0].tolist() == [0.5, 1] and rates["gains.3_0"][0].tolist() == [0.5]
    for name in ("weights.embedding", "weights.position", "weights.head", "gains.final", "biases.final"):
        assert rates[name][0].tolist() == [1, 1], name
    eps = build(placement="completep", depth=4, base_depth=2).rates("adam")["weights.feed_forward_in_3"][1]
    assert eps.tolist() == [0.5, 0.5]
    with pytest.raises(ValueError, match="'lion' is unknown; use 'sgd' or 'adam'"):
        model.rates("lion")


def test_a_partner_sets_the_encoders_constants():
    assert build(placement="deepnorm_encoder", partner=9).fixed_alpha_0.flatten()[0] == pytest.approx(0.81 * (16 * 9) ** 0.0625)
    assert build(placement="deepnorm_encoder").fixed_alpha_0.flatten()[0] == pytest.approx(0.81 * 32**0.0625)


def test_dtype_is_kept():
    for placement in ALL:
        assert build(placement=placement, dtype=torch.float32)(tokens(2)).dtype == torch.float32
        assert build_mlp({"placement": placement}, dtype=torch.float32)(inputs(1).float()).dtype == torch.float32


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"depth": 0}, "depth = 0 is not allowed"),
        ({"depth": -3}, "depth = -3 is not allowed: give at least 1"),
        ({"width": -8}, "width = -8 is not allowed"),
        ({"heads": 3}, "width = 8 is not a multiple of heads = 3"),
        ({"placement": "middle"}, "placement = 'middle' is unknown"),
        ({"norm": "batch"}, "norm = 'batch' is unknown"),
        ({"activation": "cosine"}, "activation = 'cosine' is unknown; use one of relu"),
        ({"qk_norm": "batch"}, "qk_norm = 'batch' is unknown; use one of none"),
        ({"qk_norm": "l2", "length": 2}, "too small at length = 2"),
        ({"eps": -1.0}, "eps = -1.0 is not allowed"),
        ({"multiplier": math.nan}, "multiplier = nan is not allowed"),
        ({"placement": "rezero", "multiplier": 0.5}, "multiplier = 0.5 contradicts placement = 'rezero'.*leave multiplier at 1"),
        ({"placement": "completep", "multiplier": 0.5}, "contradicts placement = 'completep'"),
        ({"base_depth": 4}, "base_depth = 4 means nothing to placement = 'pre': leave it out, or use depth_mup or completep"),
        ({"partner": 4}, "partner = 4 means nothing to placement = 'pre': leave it out, or use deepnorm_encoder"),
        ({"placement": "deepnorm_encoder", "partner": 0}, "partner = 0 is not allowed"),
    ],
)
def test_bad_configuration(changes, message):
    with pytest.raises(ValueError, match=message):
        build(**changes)


@pytest.mark.parametrize(
    "changes, message",
    [
        ([{"inputs": 0}], "inputs = 0 is not allowed"),
        ([{"outputs": 0}], "outputs = 0 is not allowed"),
        ([{"activation": "cosine"}], "'cosine' is unknown"),
        ([{}, {"width": 7}], "width differs between models .6 and others.*depth.*multiplier.*build one batch for each width"),
        ([{}, {"placement": "post"}], "placement differs between models"),
        ([{"depth": 1}, {"depth": 2}], r"depths are \[1, 2\]: order the models by depth, deepest first"),
    ],
)
def test_bad_batch(changes, message):
    with pytest.raises(ValueError, match=message):
        build_mlp(*changes)


def test_mismatched_seeds():
    with pytest.raises(ValueError, match="generators is empty"):
        models.TransformerLM(CONFIG, [])
    with pytest.raises(ValueError, match="2 configs and 3 generators: give as many of each"):
        models.TransformerLM([CONFIG, CONFIG], generators(range(3)))
    with pytest.raises(ValueError, match="1 configs and 2 generators"):
        build_mlp({}, seeds=[0, 1])


def test_bad_shapes():
    with pytest.raises(ValueError, match=r"shape \(3, 2, 5\): give \(models, sequences, length\) with 2 models"):
        build()(tokens(3))
    with pytest.raises(ValueError, match="at most 5 tokens"):
        build()(tokens(2, length=6))
    with pytest.raises(ValueError, match=r"shape \(2, 4, 5\): give \(models, batch, inputs\) with 1 models, 5 inputs"):
        build_mlp({})(inputs(2))
