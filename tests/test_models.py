"""The batched transformer against a plain one, its initialisation, and independence of the models in a batch."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from resnorm_lib import models, placements

CONFIG = models.TransformerConfig(vocabulary=7, length=6, width=8, depth=2, heads=2, hidden=16, eps=1e-5)


def build(seeds=(0, 1), **changes):
    config = models.TransformerConfig(**(CONFIG.__dict__ | changes))
    return models.TransformerLM(config, [torch.Generator().manual_seed(s) for s in seeds], dtype=torch.float64)


def tokens(models_, sequences=3, length=6):
    rng = np.random.default_rng(0)
    return torch.from_numpy(rng.integers(7, size=(models_, sequences, length)))


def plain(model, which, sequence):
    """One model on one sequence, with explicit loops over heads and positions."""
    c, w = model.config, {name: value[which] for name, value in model.weights.items()}

    def norm(x, slot):
        if c.norm == "none":
            y = x
        elif c.norm == "layer_norm":
            y = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + c.eps).sqrt()
        else:
            y = x / (x.square().mean(-1, keepdim=True) + c.eps).sqrt()
        y = y * model.gain[slot, which, 0, 0]
        return y if model.bias is None else y + model.bias[slot, which, 0, 0]

    def attention(x, layer):
        q, k, v = (x @ w[f"query_key_value_{layer}"]).chunk(3, dim=-1)
        size, out = c.width // c.heads, []
        for head in range(c.heads):
            part = slice(head * size, (head + 1) * size)
            rows = []
            for t in range(len(x)):
                scores = torch.stack([q[t, part] @ k[s, part] for s in range(t + 1)]) / size**0.5
                rows.append(torch.softmax(scores, 0) @ v[: t + 1, part])
            out.append(torch.stack(rows))
        return torch.cat(out, -1) @ w[f"attention_out_{layer}"]

    def feed_forward(x, layer):
        return torch.relu(x @ w[f"feed_forward_in_{layer}"]) @ w[f"feed_forward_out_{layer}"]

    x = w["embedding"][sequence] + w["position"][: len(sequence)]
    for layer in range(c.depth):
        for slot, branch in ((2 * layer, attention), (2 * layer + 1, feed_forward)):
            if c.placement == "pre":
                x = x + branch(norm(x, slot), layer)
            elif c.placement == "post":
                x = norm(x + branch(x, layer), slot)
            else:
                x = x + branch(x, layer)
    if c.placement == "pre":
        x = norm(x, 2 * c.depth)
    return x @ w["head"]


@pytest.mark.parametrize("placement", placements.PLACEMENTS)
@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm", "none"])
def test_forward_and_gradients_are_those_of_a_plain_model(placement, norm):
    model = build(placement=placement, norm=norm)
    with torch.no_grad():  # distinct gains and biases: a swapped or forgotten slot shows
        for parameter in (model.gain, model.bias):
            if parameter is not None:
                parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    data = tokens(2)
    logits = model(data)
    reference = torch.stack([torch.stack([plain(model, m, row) for row in data[m]]) for m in range(2)])
    assert torch.allclose(logits, reference, rtol=1e-11, atol=1e-11)
    weights = [p for p in model.parameters()]
    mine = torch.autograd.grad(logits.square().sum(), weights, allow_unused=True)
    theirs = torch.autograd.grad(reference.square().sum(), weights, allow_unused=True)
    for a, b in zip(mine, theirs, strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.allclose(a, b, rtol=1e-9, atol=1e-9)


def test_every_parameter_gets_a_gradient():
    model = build()
    F.cross_entropy(model(tokens(2)).flatten(0, 2), tokens(2).flatten()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.abs().sum() > 0, name


def test_the_future_is_not_seen():
    model, data = build(), tokens(2)
    changed = data.clone()
    changed[..., -1] = (changed[..., -1] + 1) % 7
    assert torch.equal(model(data)[..., :-1, :], model(changed)[..., :-1, :])


def test_a_model_does_not_depend_on_its_companions():
    alone, together = build(seeds=(1,)), build(seeds=(0, 1, 2))
    for (name, a), (_, b) in zip(alone.weights.items(), together.weights.items(), strict=True):
        assert torch.equal(a[0], b[1]), name
    data = tokens(1)
    assert torch.allclose(alone(data)[0], together(data.expand(3, -1, -1))[1], atol=1e-13)


@pytest.mark.parametrize(
    "name, shape, std",
    [
        ("query_key_value_0", (64, 192), (2 / 128) ** 0.5),
        ("attention_out_0", (64, 64), (2 / 128) ** 0.5),
        ("feed_forward_in_1", (64, 256), (2 / 320) ** 0.5),
        ("feed_forward_out_1", (256, 64), (2 / 320) ** 0.5),
        ("head", (64, 7), (2 / 71) ** 0.5),
        ("embedding", (7, 64), 1.0),
        ("position", (6, 64), 1.0),
    ],
)
def test_initialisation(name, shape, std):
    """Xavier's deviation for each matrix; for query, key and value each on its own."""
    model = build(seeds=range(8), width=64, hidden=256)
    weight = model.weights[name].detach()
    assert weight.shape == (8, *shape)
    parts = weight.chunk(3, dim=-1) if name.startswith("query") else [weight]
    for part in parts:
        assert part.std().item() == pytest.approx(std, rel=5 / (2 * part.numel()) ** 0.5)


def test_norm_slots():
    assert build(placement="pre").gain.shape[0] == 5
    assert build(placement="post").gain.shape[0] == 4
    assert build(norm="rms_norm").bias is None


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"depth": 0}, "depth = 0 is not allowed"),
        ({"width": -8}, "width = -8 is not allowed"),
        ({"heads": 3}, "width = 8 is not a multiple of heads = 3"),
        ({"placement": "middle"}, "placement = 'middle' is unknown"),
        ({"norm": "batch"}, "norm = 'batch' is unknown"),
    ],
)
def test_bad_configuration(changes, message):
    with pytest.raises(ValueError, match=message):
        build(**changes)


def test_no_generator():
    with pytest.raises(ValueError, match="generators is empty"):
        models.TransformerLM(CONFIG, [])
