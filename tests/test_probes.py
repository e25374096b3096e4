"""Probes against brute force, on a small stand-in and on every placement; nothing that they read is changed by reading."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from resnorm_lib import jacobians, models, placements, probes, spectra
from resnorm_lib.recording import Reading, Recorder, record

DEPTHS = (3, 3, 1)  # deepest first: two models have blocks 1 and 2, all three have block 0
WIDTH, HEADS = 4, 2


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


class StandIn(nn.Module):
    """Residual blocks x + W₂ tanh(W₁ x) that follow the rule for points, with depths that differ; it can be made to fail."""

    def __init__(self, depths=DEPTHS, dtype=torch.float64):
        super().__init__()
        self.depths, self.fails, self.shown = depths, False, {}
        alive = [sum(depth > layer for depth in depths) for layer in range(depths[0])]
        shapes = {"stem": len(depths), "head": len(depths)} | {f"{m}{k}": n for k, n in enumerate(alive) for m in "ab"}
        self.weights = nn.ParameterDict(
            {
                name: nn.Parameter(torch.randn(n, WIDTH, WIDTH, generator=generator(k), dtype=torch.float64).to(dtype))
                for k, (name, n) in enumerate(shapes.items())
            }
        )

    def forward(self, x, observe=None):
        def show(point, tensor):
            self.shown[point] = tensor
            if observe is not None:
                observe(point, tensor)

        w, self.shown, done = self.weights, {}, []
        x = torch.einsum("mb...i,mij->mb...j", x, w["stem"])
        show("stream/0", x)
        for layer in range(self.depths[0]):
            n = len(w[f"a{layer}"])
            if n < len(x):
                done.append(x[n:])
                x = x[:n]
            inner = torch.tanh(torch.einsum("mb...i,mij->mb...j", x, w[f"a{layer}"]))
            branch = torch.einsum("mb...i,mij->mb...j", inner, w[f"b{layer}"])
            show(f"branch/{layer}", branch)
            x = x + branch
            show(f"stream/{layer + 1}", x)
            if self.fails:
                raise ArithmeticError("as asked")
        x = torch.cat([x, *reversed(done)])
        logits = torch.einsum("mb...i,mij->mb...j", x, w["head"])
        show("logits", logits)
        return logits


def data(*shape, seed=9):
    return torch.randn(shape or (3, 5, WIDTH), generator=generator(seed), dtype=torch.float64)


def loss(logits):
    """One loss for each model, a mean over inputs."""
    return logits.square().flatten(1).mean(1)


def step(model, x, observe=None):
    model.zero_grad()
    loss(model(x, observe=observe)).sum().backward()
    return [None if weight.grad is None else weight.grad.clone() for weight in model.parameters()]


def same(first, second):
    return all(
        (a is None) == (b is None) and (a is None or torch.equal(a, b)) for a, b in zip(first, second, strict=True)
    )


# A perceptron and a transformer of each placement.
EVERY_MODEL = [
    pytest.param(name, kind, id=f"{name}-{kind}") for name in placements.PLACEMENTS for kind in ("mlp", "transformer")
]


def build(name, kind):
    """Two models of different depth, and their inputs."""
    sizes = {"width": 4, "hidden": 5, "placement": name, "activation": "tanh"}
    if kind == "mlp":
        configs = [models.MLPConfig(inputs=4, outputs=3, depth=depth, **sizes) for depth in (3, 2)]
        model = models.ResidualMLP(configs, [generator(1), generator(2)], dtype=torch.float64)
        x = data(2, 3, 4)
    else:
        configs = [models.TransformerConfig(vocabulary=5, length=3, heads=2, depth=depth, **sizes) for depth in (2, 1)]
        model = models.TransformerLM(configs, [generator(1), generator(2)], dtype=torch.float64)
        x = torch.randint(5, (2, 3, 3), generator=generator(3))
    with torch.no_grad():  # so that no branch is zero
        for weight in model.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=generator(4), dtype=torch.float64)
    return model, x


# Nothing is left behind


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_have_the_same_bits_with_and_without(dtype):
    model, x = StandIn(dtype=dtype), data().to(dtype)
    plain = step(model, x)
    with Recorder("stream", "branch", "logits", gradients=True) as recorder:
        watched = step(model, x, recorder)
    assert same(plain, watched)
    assert set(recorder.gradients) == set(recorder.values) == set(model.shown)
    assert all(not tensor._backward_hooks for tensor in model.shown.values())


@pytest.mark.parametrize("name, kind", EVERY_MODEL)
def test_gradients_of_every_placement_have_the_same_bits(name, kind):
    model, x = build(name, kind)
    plain = step(model, x)
    with Recorder("stream", "branch", "attention", "attention_logits", gradients=False) as recorder:
        watched = step(model, x, recorder)
    assert same(plain, watched)
    before = [weight.grad.clone() if weight.grad is not None else None for weight in model.parameters()]
    kept = record(model, x, "stream", "branch", loss=loss)
    jacobians.effective_path_length(model, x, loss)
    jacobians.block_jacobians(model, x)
    assert same(before, [weight.grad for weight in model.parameters()])
    assert same(plain, step(model, x))
    norms = probes.activation_gradient_norms(kept).mean_of_norms
    deep = 3 if kind == "mlp" else 2
    assert norms.values.shape == (2, deep + 1) and norms.labels[-1] == f"stream/{deep}"
    assert np.isfinite(norms.values).sum(1).tolist() == [deep + 1, deep]


def test_hooks_are_removed_after_an_exception():
    model, x = StandIn(), data()
    plain = step(model, x)
    model.fails = True
    with pytest.raises(ArithmeticError), Recorder("stream", gradients=True) as recorder:
        model(x, observe=recorder)
    assert recorder.values and all(not tensor._backward_hooks for tensor in model.shown.values())
    for probe in (jacobians.effective_path_length, lambda *a: record(*a[:2], "stream", "branch", loss=a[2])):
        with pytest.raises(ArithmeticError):
            probe(model, x, loss)
        assert all(not tensor._backward_hooks for tensor in model.shown.values())
    model.fails = False

    def fail(logits):
        raise ArithmeticError("as asked")

    with pytest.raises(ArithmeticError):
        jacobians.effective_path_length(model, x, fail)
    assert all(not tensor._backward_hooks for tensor in model.shown.values())
    assert same(plain, step(model, x))


def test_a_recorder_stops_when_its_block_ends():
    model, x = StandIn(), data()
    with Recorder("stream", gradients=True) as recorder:
        logits = model(x, observe=recorder)
    loss(logits).sum().backward()
    assert not recorder.gradients


def test_record_keeps_copies_and_touches_nothing():
    model, x = StandIn(), data()
    state = torch.get_rng_state()
    kept = record(model, x, "stream", loss=loss)
    assert all(weight.grad is None for weight in model.parameters()) and torch.equal(state, torch.get_rng_state())
    seen = kept.values["stream/1"].clone()
    with torch.no_grad():
        model.shown["stream/1"].zero_()
    assert torch.equal(kept.values["stream/1"], seen) and not kept.values["stream/1"].requires_grad
    assert not record(model, x, "logits").values["logits"].requires_grad
    assert not record(model, x, "logits").gradients


def test_a_recorder_says_how_it_is_used():
    model, x = StandIn(), data()
    with pytest.raises(ValueError, match="no kind of point"):
        Recorder()
    with pytest.raises(RuntimeError, match="inside a with block"):
        model(x, observe=Recorder("stream", gradients=True))
    with pytest.raises(RuntimeError, match="stream/0 was shown twice"), Recorder("stream") as recorder:
        model(x, observe=recorder)
        model(x, observe=recorder)
    bare = pytest.raises(RuntimeError, match="stream/0 has no gradient")
    with bare, torch.no_grad(), Recorder("stream", gradients=True) as recorder:
        model(x, observe=recorder)
    with pytest.raises(ValueError, match="no stream: record with kind 'stream', gradients=True"):
        probes.activation_gradient_norms(record(model, x, "stream"))
    with pytest.raises(ValueError, match="no stream: record with kind 'stream'$"):
        probes.stream_norm(record(model, x, "logits"))


@pytest.mark.parametrize(
    "axes, labels, message", [(("blocks",), (), "the first 'models'"), (("models",), ("x",), "1 labels")]
)
def test_a_reading_names_its_axes(axes, labels, message):
    with pytest.raises(ValueError, match=message):
        Reading("q", "p", axes, labels, np.zeros(2))
    with pytest.raises(ValueError, match="do not name shape"):
        Reading("q", "p", ("models",), (), np.zeros((2, 2)))


# Norms


def test_activation_gradient_norms():
    """Three different numbers, each by its definition, and NaN where a model has no block."""
    model, x = StandIn(), data(3, 5, 2, WIDTH)
    kept = record(model, x, "stream", loss=loss)
    norms = probes.activation_gradient_norms(kept)
    total = loss(model(x)).sum()
    streams = [model.shown[f"stream/{k}"] for k in range(4)]
    for block, g in enumerate(torch.autograd.grad(total, streams)):
        for m in range(3):
            read = [reading.values[m, block] for reading in norms]
            if block > DEPTHS[m]:
                assert np.isnan(read).all()
                continue
            rows = g[m].reshape(-1, WIDTH)
            assert read[0] == pytest.approx(sum(row.norm().item() for row in rows) / len(rows), rel=1e-12)
            assert read[1] == pytest.approx((sum(rows) / len(rows)).norm().item(), rel=1e-12)
            assert read[2] == pytest.approx(rows.square().sum().sqrt().item(), rel=1e-12)
            assert read[1] < 0.99 * read[0] < 0.99 * read[2] * len(rows) ** -0.5 * 1.5
    for reading, name in zip(norms, ("mean over inputs of the norm", "norm of the mean", "Frobenius"), strict=True):
        assert name in reading.quantity and reading.point == "∂loss/∂stream/l"
        assert reading.axes == ("models", "boundaries") and reading.labels == tuple(f"stream/{k}" for k in range(4))


def test_single_precision_is_reduced_in_double():
    class Loud(nn.Module):
        def forward(self, x, observe=None):
            observe("stream/0", x)

    kept = record(Loud(), torch.full((1, 2, WIDTH), 1e30, dtype=torch.float32), "stream")
    assert probes.stream_norm(kept).values == pytest.approx(2e30, rel=1e-6)


def test_points_stand_in_the_order_of_their_numbers():
    recorder = Recorder("stream")
    for k in (10, 2, 0):
        recorder(f"stream/{k}", torch.full((1, 1, 1), float(k)))
    reading = probes.stream_norm(recorder)
    assert reading.labels == ("stream/0", "stream/2", "stream/10") and reading.values.tolist() == [[0, 2, 10]]


def test_parameter_gradient_norms():
    model, x = StandIn(), data()
    step(model, x)
    reading = probes.parameter_gradient_norms(model, point="before clipping")
    assert reading.point == "before clipping" and reading.axes == ("models", "parameters")
    for column, (name, weight) in enumerate(model.named_parameters()):
        assert reading.labels[column] == name
        norms = [row.square().sum().sqrt().item() for row in weight.grad]
        assert reading.values[: len(norms), column] == pytest.approx(norms, rel=1e-12)
        assert np.isnan(reading.values[len(norms) :, column]).all()
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    clipped = probes.parameter_gradient_norms(model, point="after clipping").values
    assert np.nansum(clipped**2) ** 0.5 == pytest.approx(1e-3, rel=1e-3)
    with pytest.raises(ValueError, match="point = 'here' is not allowed: say 'before clipping'"):
        probes.parameter_gradient_norms(model, point="here")
    model.zero_grad()
    with pytest.raises(ValueError, match="call backward first"):
        probes.parameter_gradient_norms(model, point="before clipping")


def test_matrices_that_share_a_parameter_are_read_apart():
    model, x = build("pre", "transformer")
    step(model, x)
    reading = probes.matrix_gradient_norms(model, point="before clipping")
    slab = model.weights["query_key_value_0"].grad
    for part, name in zip(slab.chunk(3, -1), ("query/0", "key/0", "value/0"), strict=True):
        column = reading.values[:, reading.labels.index(name)]
        assert column == pytest.approx(part.square().sum((1, 2)).sqrt().tolist(), rel=1e-12)
    assert {"embedding", "head", "feed_forward_out/1"} <= set(reading.labels)
    assert np.isnan(reading.values[1, reading.labels.index("value/1")])


def test_stream_norm_and_cosine():
    """All pairs, one by one."""
    model, x = StandIn(), data(3, 5, 2, WIDTH)
    kept = record(model, x, "stream")
    norm, inputs = probes.stream_norm(kept), probes.across_input_cosine(kept)
    tokens = probes.across_input_cosine(kept, "tokens")
    for block, stream in enumerate(kept.values.values()):
        for m in range(len(stream)):
            h = stream[m].numpy()
            unit = h / np.linalg.norm(h, axis=-1, keepdims=True)
            assert norm.values[m, block] == pytest.approx(np.linalg.norm(h, axis=-1).mean(), rel=1e-12)
            pairs = [unit[i, t] @ unit[j, t] for i, j in itertools.permutations(range(5), 2) for t in range(2)]
            assert inputs.values[m, block] == pytest.approx(np.mean(pairs), abs=1e-12)
            assert tokens.values[m, block] == pytest.approx(np.mean([u[0] @ u[1] for u in unit]), abs=1e-12)
    assert np.isnan(norm.values[2, 2:]).all() and np.isnan(inputs.values[2, 2:]).all()
    flat = record(model, x[:, :, 0], "stream")
    assert probes.across_input_cosine(flat).values.shape == (3, 4)
    with pytest.raises(ValueError, match="1 token has nothing to compare with"):
        probes.across_input_cosine(flat, "tokens")
    with pytest.raises(ValueError, match="1 input has nothing to compare with"):
        probes.across_input_cosine(record(model, x[:, :1], "stream"))
    with pytest.raises(ValueError, match="across = 'heads' is not allowed"):
        probes.across_input_cosine(flat, "heads")


def test_function_change():
    """What one changed head does to the logits, and nothing to the stream."""
    model, x = StandIn(), data()
    before = record(model, x, "stream", "logits")
    stream, shift = torch.cat([model.shown["stream/3"], model.shown["stream/1"][2:]]), data(3, WIDTH, WIDTH, seed=3)
    with torch.no_grad():
        model.weights["head"] += shift
    reading = probes.function_change(before, record(model, x, "stream", "logits"), steps=7)
    expected = [
        torch.stack([(h @ s).square().sum() for h in hs]).mean().sqrt() for hs, s in zip(stream, shift, strict=True)
    ]
    assert reading.values[:, reading.labels.index("logits")] == pytest.approx([e.item() for e in expected], rel=1e-12)
    assert (
        np.nansum(reading.values[:, :4]) == 0 and reading.axes == ("models", "points") and "7 steps" in reading.quantity
    )
    with pytest.raises(ValueError, match="steps = 0 is not allowed"):
        probes.function_change(before, before, steps=0)
    with pytest.raises(ValueError, match="do not show the same"):
        probes.function_change(before, record(model, x[:, :2], "stream", "logits"), steps=1)


# Attention


def test_attention_of_a_transformer():
    model, x = build("pre", "transformer")
    kept = record(model, x, "attention", "attention_logits")
    entropy, largest = probes.attention_entropy(kept), probes.largest_attention_logit(kept)
    assert entropy.axes == largest.axes == ("models", "layers", "heads") and entropy.values.shape == (2, 2, HEADS)
    weights, logits = kept.values["attention/0"].numpy(), kept.values["attention_logits/0"].numpy()
    for m, head in itertools.product(range(2), range(HEADS)):
        each = [-(row[row > 0] * np.log(row[row > 0])).sum() for row in weights[m, :, head].reshape(-1, 3)]
        assert entropy.values[m, 0, head] == pytest.approx(np.mean(each), rel=1e-12)
        seen = logits[m, :, head][np.isfinite(logits[m, :, head])]
        assert largest.values[m, 0, head] == pytest.approx(np.abs(seen).max(), rel=1e-12)
    assert np.isnan(entropy.values[1, 1]).all() and "before the softmax" in largest.point


def test_a_mask_is_left_out_and_a_failure_is_not():
    recorder = Recorder("attention", "attention_logits")
    uniform = torch.ones(3, 3).tril() / torch.arange(1, 4)[:, None]
    recorder("attention/0", uniform.expand(1, 1, 2, 3, 3))
    logits = torch.full((1, 1, 2, 3, 3), -torch.inf)
    logits[0, 0, 0, 1, 0], logits[0, 0, 1, 2, 2] = -4.0, torch.nan
    recorder("attention_logits/0", logits)
    assert probes.attention_entropy(recorder).values == pytest.approx(np.log([1, 2, 3]).mean(), rel=1e-6)
    largest = probes.largest_attention_logit(recorder).values[0, 0]
    assert largest[0] == 4 and np.isnan(largest[1])


# Spectra


def test_effective_rank_and_participation_ratio():
    logs = np.log([[3.0, 1.0], [2.0, 2.0], [1.0, 1e-300]])
    p = np.array([0.75, 0.25])
    assert spectra.effective_rank(logs) == pytest.approx([np.exp(-(p * np.log(p)).sum()), 2, 1], rel=1e-12)
    assert spectra.participation_ratio(logs) == pytest.approx([100 / 82, 2, 1], rel=1e-12)
    assert spectra.effective_rank(np.array([-1e4, -1e4, -np.inf])) == pytest.approx(2)
    assert np.isnan(spectra.effective_rank(np.full(2, -np.inf)))


def test_effective_rank_of_the_stream():
    recorder = Recorder("stream")
    recorder("stream/0", torch.ones(1, 3, 2, 4))
    recorder("stream/1", torch.eye(4, dtype=torch.float64)[None, :, None])
    assert probes.stream_effective_rank(recorder).values == pytest.approx(np.array([[1.0, 4.0]]), rel=1e-6)


def exact_logs(factors):
    """By arithmetic with 300 digits."""
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(300):
        product = mpmath.eye(factors.shape[-1])
        for factor in factors:
            product = mpmath.matrix(factor.tolist()) * product
        return sorted((float(mpmath.log(s)) for s in mpmath.svd_r(product, compute_uv=False)), reverse=True)


def test_singular_values_beyond_double_precision():
    """100 decades: QR agrees with exact arithmetic, the product's own SVD cannot, and one sweep is an estimate only."""
    factors = torch.randn(120, 5, 5, generator=generator(), dtype=torch.float64)
    exact = np.array(exact_logs(factors))
    assert exact[0] - exact[-1] > 80 * np.log(10)
    assert np.abs(spectra.log_singular_values(factors).numpy() - exact).max() < 1e-9
    assert np.abs(spectra.log_singular_values(factors, sweeps=1).numpy() - exact).max() > 0.1
    formed = spectra.log_singular_values(factors, "svd").numpy()
    assert formed[0] == pytest.approx(exact[0]) and formed[-1] == -np.inf


def test_both_methods_agree_where_both_can():
    factors = torch.randn(2, 3, 4, 6, 6, generator=generator(), dtype=torch.float64)
    qr, svd = spectra.log_singular_values(factors, sweeps=2000), spectra.log_singular_values(factors, "svd")
    assert qr.shape == (2, 3, 6) and torch.allclose(qr, svd, rtol=0, atol=1e-8)
    product = factors[1, 2, 3] @ factors[1, 2, 2] @ factors[1, 2, 1] @ factors[1, 2, 0]
    assert torch.allclose(svd[1, 2], torch.linalg.svdvals(product).log(), atol=1e-10)
    early = spectra.log_singular_values(factors, sweeps=50)
    assert (early - svd).abs().max() < 1 / 50


@pytest.mark.parametrize("method", ["qr", "svd"])
def test_a_zero_is_a_zero(method):
    """A direction that one factor removes does not come back as noise."""
    factors = torch.randn(9, 5, 5, generator=generator(), dtype=torch.float64)
    factors[4] -= factors[4].mean(0)  # rank four
    logs = spectra.log_singular_values(factors, method)
    assert torch.isfinite(logs[:4]).all() and logs[4] == -torch.inf


@pytest.mark.parametrize(
    "change, message",
    [
        ({"factors": torch.ones(2, 3)}, "give .*factors, d, d"),
        ({"factors": torch.ones(2, 3, 4)}, "give .*factors, d, d"),
        ({"method": "lanczos"}, "method = 'lanczos' is unknown"),
        ({"sweeps": 0}, "sweeps = 0 is not allowed"),
        ({"factors": torch.full((2, 3, 3), torch.nan)}, "not finite: leave diverged models out"),
    ],
)
def test_bad_factors(change, message):
    with pytest.raises(ValueError, match=message):
        spectra.log_singular_values(**({"factors": torch.ones(2, 3, 3)} | change))


# Jacobians and paths


def test_block_jacobians_and_their_product():
    model, x = StandIn(), data()
    reading = jacobians.block_jacobians(model, x)
    assert reading.axes == ("models", "blocks", "inputs", "out", "in") and reading.values.shape == (
        3,
        3,
        5,
        WIDTH,
        WIDTH,
    )
    assert np.array_equal(reading.values[2, 1:], np.broadcast_to(np.eye(WIDTH), (2, 5, WIDTH, WIDTH)))
    for m, b in itertools.product(range(3), range(5)):

        def blocks(h, m=m):
            for k in range(DEPTHS[m]):
                h = h + torch.tanh(h @ model.weights[f"a{k}"][m]) @ model.weights[f"b{k}"][m]
            return h

        model(x)
        whole = torch.autograd.functional.jacobian(blocks, model.shown["stream/0"][m, b].detach())
        product = reading.values[m, 2, b] @ reading.values[m, 1, b] @ reading.values[m, 0, b]
        assert np.abs(product - whole.numpy()).max() < 1e-12
        logs = jacobians.end_to_end(reading, "svd").values
        assert logs[m, :, b] == pytest.approx(torch.linalg.svdvals(whole).log().tolist(), abs=1e-9)
    ends = jacobians.end_to_end(reading)
    assert ends.axes == ("models", "directions", "inputs") and "by qr" in ends.quantity
    assert np.abs(ends.values - logs).max() < 0.02


def test_tokens_that_see_each_other_have_one_jacobian():
    model, x = build("post", "transformer")
    reading = jacobians.block_jacobians(model, x)
    assert reading.values.shape == (2, 2, 3, 12, 12)
    blocks = reading.values[:, :1].reshape(2, 3, 3, 4, 3, 4)  # models, inputs, token out, width, token in, width
    assert np.abs(blocks[:, :, 0, :, 1:]).max() == 0 < np.abs(blocks[:, :, 2, :, 0]).min()


def test_effective_path_length_by_summing_all_paths():
    """Every subset of branches is a path; the gradient is their sum."""
    model, x = StandIn(), data()
    with Recorder("stream", gradients=True) as recorder:
        loss(model(x, observe=recorder)).sum().backward()
    found = jacobians.effective_path_length(model, x, loss)
    branches = jacobians.block_jacobians(model, x).values - np.eye(WIDTH)
    for m in range(3):
        top = recorder.gradients[f"stream/{DEPTHS[m]}"][m].numpy()
        paths = {}
        for chosen in itertools.product((0, 1), repeat=DEPTHS[m]):
            path = top
            for block in reversed(range(DEPTHS[m])):
                path = np.einsum("bi,bij->bj", path, branches[m, block]) if chosen[block] else path
            paths[chosen] = path
        g = sum(paths.values())
        assert np.abs(g - recorder.gradients["stream/0"][m].numpy()).max() < 1e-12
        for block in range(DEPTHS[m]):
            share = sum((path * g).sum() for chosen, path in paths.items() if chosen[block]) / (g * g).sum()
            assert found.crossings.values[m, block] == pytest.approx(share, rel=1e-10)
        length = sum(sum(chosen) * (path * g).sum() for chosen, path in paths.items()) / (g * g).sum()
        assert found.mean.values[m] == pytest.approx(length, rel=1e-10)
    assert np.isnan(found.crossings.values[2, 1:]).all() and found.crossings.labels == (
        "branch/0",
        "branch/1",
        "branch/2",
    )
    assert found.mean.axes == ("models",) and found.crossings.axes == ("models", "branches")


@pytest.mark.parametrize("name, kind", EVERY_MODEL)
def test_effective_path_length_of_every_placement(name, kind):
    """Against the slope of ln‖g‖ when all branches are scaled by s on the way back, by central differences."""
    model, x = build(name, kind)
    found = jacobians.effective_path_length(model, x, loss).mean.values
    assert np.isfinite(found).all()

    def log_norm(s):
        kept = {}

        def observe(point, tensor):
            kept.setdefault(point, tensor)
            if point.startswith("branch/"):
                tensor.register_hook(lambda g: s * g)

        total = loss(model(x, observe=observe)).sum()
        return torch.autograd.grad(total, kept["stream/0"])[0].flatten(1).norm(dim=1).log().numpy()

    h = 1e-3
    slope = (8 * (log_norm(1 + h) - log_norm(1 - h)) - (log_norm(1 + 2 * h) - log_norm(1 - 2 * h))) / (12 * h)
    assert found == pytest.approx(slope, abs=1e-7)


def test_a_vanishing_gradient_has_a_path_length():
    """At 1e-200 its square is zero in float64."""
    model, x = StandIn(), data()
    usual = jacobians.effective_path_length(model, x, lambda logits: logits.flatten(1).mean(1)).mean.values
    tiny = jacobians.effective_path_length(model, x, lambda logits: 1e-200 * logits.flatten(1).mean(1)).mean.values
    assert tiny == pytest.approx(usual, rel=1e-12)


def test_a_diverged_model_spoils_no_other():
    model, x = StandIn(), data()
    kept, ends = record(model, x, "stream"), jacobians.end_to_end(jacobians.block_jacobians(model, x)).values
    good = probes.stream_effective_rank(kept).values
    path = jacobians.effective_path_length(model, x, loss).mean.values
    with torch.no_grad():
        model.weights["a1"][1] = torch.nan
    spoilt = record(model, x, "stream", loss=loss)
    for before, after in (
        (good, probes.stream_effective_rank(spoilt).values),
        (ends, jacobians.end_to_end(jacobians.block_jacobians(model, x)).values),
        (path, jacobians.effective_path_length(model, x, loss).mean.values),
    ):
        assert np.allclose(after[[0, 2]], before[[0, 2]], rtol=1e-12, equal_nan=True) and np.isnan(after[1]).any()
    norms = probes.activation_gradient_norms(spoilt).mean_of_norms.values
    assert np.isnan(norms[1, 0]) and np.isfinite(norms[[0, 2], 0]).all()


def test_no_branch_no_path():
    model, x = StandIn(), data()
    with torch.no_grad():
        for k in range(3):
            model.weights[f"b{k}"].zero_()
    assert jacobians.effective_path_length(model, x, loss).mean.values.tolist() == [0, 0, 0]

    class Bare(nn.Module):
        def forward(self, x, observe=None):
            observe("stream/0", x)
            return x

    with pytest.raises(ValueError, match="no stream/0 or no branch"):
        jacobians.effective_path_length(Bare(), x, loss)
    with pytest.raises(ValueError, match="shows 1 boundaries"):
        jacobians.block_jacobians(Bare(), x)
