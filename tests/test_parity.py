"""The transformer against other people's, in float64 with weights copied: forward and gradients to 1e-12.

torch is always there; x-transformers and torchscale are compared with where they are installed (``requirements-dev.txt``).
"""

import dataclasses
import importlib.util
import math
import os
import sys
import types

import pytest
import torch
from torch import nn

from resnorm_lib import models, placements
from resnorm_lib.placements import Site
from resnorm_lib.stack import Matrix

torch.set_num_threads(1)  # the matrices are small: a second thread costs more than it does

CLOSE = {"rtol": 1e-12, "atol": 1e-12}
CONFIG = models.TransformerConfig(vocabulary=7, length=5, width=8, depth=3, heads=2, hidden=12)
ROOM = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture
def softmax_in_double(monkeypatch):
    """Both peers take the softmax in float32 whatever comes in: that cast is taken out."""
    softmax = torch.nn.functional.softmax
    monkeypatch.setattr(torch.nn.functional, "softmax", lambda x, dim, dtype=None: softmax(x, dim=dim))


def needs(name):
    missing = importlib.util.find_spec(name) is None and not os.environ.get("CI")  # there it must be installed
    return pytest.mark.skipif(missing, reason=f"{name} is not installed")


def ours(**changes):
    """One model, with gains and biases away from one and zero."""
    config = dataclasses.replace(CONFIG, **changes)
    model = models.TransformerLM(config, [torch.Generator().manual_seed(0)], torch.float64)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for group in (model.gains, model.biases, model.qk):
            for parameter in group.values():
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


def blocks(model, x):
    """The blocks alone, with the final norm: ``(sequences, length, width)`` to the same."""
    branches = [lambda z, branch: model._attention(z, branch, None), model._feed_forward]
    return model.run(x[None], branches, lambda point, tensor: None)[0]


def compare(mine, theirs, between=lambda: None):
    """Outputs and gradients by the input; the gradients of parameters stay with them, theirs made first."""
    left, right = (ROOM.clone().requires_grad_() for _ in range(2))
    a, b = mine(left), theirs(right)
    assert torch.allclose(a, b, **CLOSE)
    weight = torch.randn(a.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    (b * weight).sum().backward()
    between()
    (a * weight).sum().backward()
    assert torch.allclose(left.grad, right.grad, **CLOSE)


def gradient(parameter):
    return parameter.grad[0]


def matrices(model, layer):
    """Role to gradient, as ``(out, in)``, the way torch's layers hold it."""
    return {m.role: m.gradient[0].mT for m in model.matrices if m.layer == layer}


def torch_layers(model, norm_first):
    config, w = model.config, model.weights
    stack = []
    for k in range(config.depth):
        layer = nn.TransformerEncoderLayer(
            config.width, config.heads, config.hidden, dropout=0.0, batch_first=True, norm_first=norm_first, dtype=torch.float64
        )
        with torch.no_grad():
            layer.self_attn.in_proj_weight.copy_(w[f"query_key_value_{k}"][0].mT)
            layer.self_attn.in_proj_bias.zero_()
            layer.self_attn.out_proj.weight.copy_(w[f"attention_out_{k}"][0].mT)
            layer.self_attn.out_proj.bias.zero_()
            layer.linear1.weight.copy_(w[f"feed_forward_in_{k}"][0].mT)
            layer.linear1.bias.zero_()
            layer.linear2.weight.copy_(w[f"feed_forward_out_{k}"][0].mT)
            layer.linear2.bias.zero_()
            for norm, branch in ((layer.norm1, 2 * k), (layer.norm2, 2 * k + 1)):
                norm.weight.copy_(model.gains[f"{branch}_0"].flatten())
                norm.bias.copy_(model.biases[f"{branch}_0"].flatten())
        stack.append(layer)
    return stack


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_torch_encoder_layer(placement, causal):
    model = ours(placement=placement, causal=causal)
    stack = torch_layers(model, norm_first=placement == "pre")
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64) if causal else None

    def theirs(x):
        for layer in stack:
            x = layer(x, src_mask=mask, is_causal=causal)
        return x if placement == "post" else model.norm(x[None], "final")[0]

    # The final norm is ours on both sides: what theirs leaves in its gradient is taken out.
    compare(lambda x: blocks(model, x), theirs, lambda: model.zero_grad())
    for k, layer in enumerate(stack):
        own = matrices(model, k)
        slab = torch.cat([own["query"], own["key"], own["value"]])
        for mine_, theirs_ in (
            (slab, layer.self_attn.in_proj_weight.grad),
            (own["attention_out"], layer.self_attn.out_proj.weight.grad),
            (own["feed_forward_in"], layer.linear1.weight.grad),
            (own["feed_forward_out"], layer.linear2.weight.grad),
            (gradient(model.gains[f"{2 * k}_0"]).flatten(), layer.norm1.weight.grad),
            (gradient(model.biases[f"{2 * k}_0"]).flatten(), layer.norm1.bias.grad),
            (gradient(model.gains[f"{2 * k + 1}_0"]).flatten(), layer.norm2.weight.grad),
            (gradient(model.biases[f"{2 * k + 1}_0"]).flatten(), layer.norm2.bias.grad),
        ):
            assert torch.allclose(mine_, theirs_, **CLOSE)


X_TRANSFORMERS = [
    ({"placement": "pre"}, {}),
    ({"placement": "post"}, {"pre_norm": False}),
    ({"placement": "sandwich"}, {"sandwich_norm": True}),
    ({"placement": "pre", "norm": "rms_norm", "eps": 0.0}, {"use_rmsnorm": True}),
    ({"placement": "pre", "norm": "dyt"}, {"use_dynamic_tanh": True, "dynamic_tanh_init_alpha": 0.5}),
    ({"placement": "pre", "qk_norm": "l2"}, {"attn_qk_norm": True}),
    ({"placement": "pre", "qk_norm": "rms_norm", "eps": 0.0}, {"attn_qk_norm": True, "attn_qk_norm_dim_scale": True}),
]


@needs("x_transformers")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("changes, options", X_TRANSFORMERS, ids=lambda x: "-".join(map(str, x.values())) or "default")
def test_x_transformers(softmax_in_double, changes, options):
    from x_transformers import Decoder

    model = ours(**changes)
    c = model.config
    if c.qk_norm == "l2":  # theirs is one constant
        options = options | {"attn_qk_norm_scale": 5.0}
        with torch.no_grad():
            for parameter in model.qk.values():
                parameter.fill_(5.0)
    options = {"attn_dim_head": c.width // c.heads, "ff_mult": c.hidden / c.width, "ff_glu": False, **options}
    options |= {"ff_custom_activation": nn.ReLU(), "ff_no_bias": True, "norm_add_unit_offset": False}
    theirs = Decoder(dim=c.width, depth=c.depth, heads=c.heads, **options).double()
    pairs = []  # our matrix or parameter, theirs
    heads = []  # our gain for queries or keys, theirs for each head
    for index, (slots, branch, _) in enumerate(theirs.layers):
        own = {m.role: m for m in model.matrices if m.layer == index // 2}
        if index % 2 == 0:
            pairs += [(own[role], getattr(branch, f"to_{role[0]}").weight) for role in ("query", "key", "value")]
            pairs.append((own["attention_out"], branch.to_out.weight))
            if c.qk_norm == "rms_norm":
                sides = ("query", branch.qk_norm_q_scale), ("key", branch.qk_norm_k_scale)
                heads += [(model.qk[f"{name}_gain_{index // 2}"], other) for name, other in sides]
        else:
            first, last = [part for part in branch.modules() if isinstance(part, nn.Linear)]
            pairs += [(own["feed_forward_in"], first.weight), (own["feed_forward_out"], last.weight)]
        for slot, norm in enumerate(norm for norm in slots if norm is not None):
            pairs += norm_pairs(model, f"{index}_{slot}", norm)
    if model.placement.final_norm:
        pairs += norm_pairs(model, "final", theirs.final_norm)
    assert len(pairs) + len(heads) == len(list(theirs.parameters()))
    root = (c.width // c.heads) ** 0.5  # theirs divides by the length, ours by the root mean square
    with torch.no_grad():
        for mine, other in pairs:
            other.copy_(mine.value[0].mT if isinstance(mine, Matrix) else mine.view(other.shape))
        for mine, other in heads:
            other.copy_((root * mine.flatten()).expand_as(other))
    compare(lambda x: blocks(model, x), theirs)
    for mine, other in pairs:
        own = mine.gradient[0].mT if isinstance(mine, Matrix) else mine.grad.view(other.shape)
        assert own.abs().sum() > 0 and torch.allclose(own, other.grad, **CLOSE)
    for mine, other in heads:
        assert torch.allclose(mine.grad.flatten(), root * other.grad.sum((0, 1)), **CLOSE)


def norm_pairs(model, key, norm):
    """Theirs: a gain alone, or gain, bias and slope of DyT; our bias is set to zero where they have none."""
    if hasattr(norm, "ln"):
        norm.ln.eps = model.config.eps
    pairs = [(model.gains[key], next(p for name, p in norm.named_parameters() if name in ("gamma", "g")))]
    if hasattr(norm, "beta"):
        return [*pairs, (model.biases[key], norm.beta), (model.slopes[key], norm.pre_tanh_scale)]
    if key in model.biases:
        with torch.no_grad():
            model.biases[key].zero_()
    return pairs


def deepnet_by_hand(model, x):
    """Ten lines from DeepNet's figure 2 for an encoder of N layers: LN(αx + G(x)), α = (2N)^(1/4)."""
    c, w = model.config, model.weights
    norm = lambda z, key: nn.functional.layer_norm(z, (c.width,), model.gains[key].flatten(), model.biases[key].flatten())
    for k in range(c.depth):
        q, key, v = (z.unflatten(-1, (c.heads, -1)).transpose(1, 2) for z in (x @ w[f"query_key_value_{k}"][0]).chunk(3, -1))
        scores = (q @ key.mT) / math.sqrt(c.width // c.heads)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2) @ w[f"attention_out_{k}"][0]
        x = norm((2 * c.depth) ** 0.25 * x + mixed, f"{2 * k}_0")
        fed = torch.relu(x @ w[f"feed_forward_in_{k}"][0]) @ w[f"feed_forward_out_{k}"][0]
        x = norm((2 * c.depth) ** 0.25 * x + fed, f"{2 * k + 1}_0")
    return x


def test_deepnorm_by_hand():
    model = ours(placement="deepnorm", causal=False)
    left, right = ROOM.clone().requires_grad_(), ROOM.clone().requires_grad_()
    a, b = blocks(model, left), deepnet_by_hand(model, right)
    assert torch.allclose(a, b, **CLOSE)
    rest = [*model.gains.values(), *(m.parameter for m in model.matrices if m.layer is not None and m.role not in ("key", "value"))]
    mine = torch.autograd.grad(a.square().sum(), [left, *rest])
    theirs = torch.autograd.grad(b.square().sum(), [right, *rest])
    assert all(torch.allclose(x, y, **CLOSE) for x, y in zip(mine, theirs, strict=True))


@pytest.fixture
def torchscale(monkeypatch):
    """torchscale asks a library of image models for one function, and that library for another build of torch: a stand-in."""
    for name in ("timm", "timm.models", "timm.models.layers"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["timm.models.layers"].drop_path = None
    from torchscale.architecture import config, decoder, encoder

    return types.SimpleNamespace(config=config, decoder=decoder, encoder=encoder)


@needs("torchscale")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("placement, options", [("deepnorm", {"deepnorm": True}), ("sub_ln", {"subln": True})])
def test_torchscale(torchscale, softmax_in_double, monkeypatch, placement, options):
    """Its activation works in float32 as well: that cast too is taken out."""
    monkeypatch.setattr(torch.Tensor, "float", lambda x: x)
    model = ours(placement=placement, causal=False)
    c = model.config
    options = {"deepnorm": False, "subln": False} | options
    args = torchscale.config.EncoderConfig(
        encoder_embed_dim=c.width, encoder_attention_heads=c.heads, encoder_ffn_embed_dim=c.hidden, encoder_layers=c.depth,
        activation_fn="relu", dropout=0.0, no_output_layer=True, encoder_normalize_before=placement == "sub_ln",
        layernorm_eps=1e-5, no_scale_embedding=True, **options,
    )  # fmt: skip
    theirs = torchscale.encoder.Encoder(args).double()
    pairs, norms = [], []
    for k, layer in enumerate(theirs.layers):
        own = {m.role: m for m in model.matrices if m.layer == k}
        attention = layer.self_attn
        pairs += [(own["query"], attention.q_proj), (own["key"], attention.k_proj), (own["value"], attention.v_proj)]
        pairs += [(own["attention_out"], attention.out_proj), (own["feed_forward_in"], layer.ffn.fc1)]
        pairs += [(own["feed_forward_out"], layer.ffn.fc2)]
        norms += [(f"{2 * k}_0", layer.self_attn_layer_norm), (f"{2 * k + 1}_0", layer.final_layer_norm)]
        if placement == "sub_ln":
            norms += [(f"{2 * k}_inner", attention.inner_attn_ln), (f"{2 * k + 1}_inner", layer.ffn.ffn_layernorm)]
    if placement == "sub_ln":
        norms.append(("final", theirs.layer_norm))
    with torch.no_grad():
        for mine, other in pairs:
            other.weight.copy_(mine.value[0].mT)
            other.bias.zero_()
        for key, other in norms:
            other.weight.copy_(model.gains[key].flatten())
            other.bias.copy_(model.biases[key].flatten())
    compare(lambda x: blocks(model, x), lambda x: theirs(None, token_embeddings=x)["encoder_out"])
    for mine, other in pairs:
        assert torch.allclose(mine.gradient[0].mT, other.weight.grad, **CLOSE)
    for key, other in norms:
        assert torch.allclose(model.gains[key].grad.flatten(), other.weight.grad, **CLOSE)
        assert torch.allclose(model.biases[key].grad.flatten(), other.bias.grad, **CLOSE)


ROLE = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "attention_out"}
ROLE |= {"fc1": "feed_forward_in", "fc2": "feed_forward_out"}


def torchscale_ratios(torchscale, side, option, layers, partner):
    """What torchscale multiplies each matrix by at the start (the same draws with the scheme and without), and its α."""
    encoder = side == "encoder"
    kind = torchscale.encoder.Encoder if encoder else torchscale.decoder.Decoder
    found = []
    for on in (False, True):
        torch.manual_seed(0)
        config = torchscale.config.EncoderConfig if encoder else torchscale.config.DecoderConfig
        flags = {"deepnorm": False, "subln": False} | {option: on}
        sizes = {"embed_dim": 8, "attention_heads": 2, "ffn_embed_dim": 12, "layers": layers}
        args = config(no_output_layer=True, **flags, **{f"{side}_{name}": size for name, size in sizes.items()})
        other = "decoder_layers" if encoder else "encoder_layers"
        setattr(args, other, partner)
        found.append(kind(args, is_encoder_decoder=partner is not None))
    before, after = (
        [(name.split(".")[-2], p) for name, p in model.named_parameters() if name.split(".")[-2] in ROLE and p.ndim == 2]
        for model in found
    )
    ratios = {ROLE[name]: (b / a).median().item() for (name, a), (_, b) in zip(before, after, strict=True)}
    assert ratios.keys() == set(ROLE.values())
    return ratios, found[1].layers[0].alpha


@needs("torchscale")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "side, option, name, layers, partner",
    [
        ("encoder", "deepnorm", "deepnorm", 6, None),
        ("encoder", "subln", "sub_ln", 6, None),
        ("encoder", "deepnorm", "deepnorm_encoder", 3, 5),
        ("decoder", "deepnorm", "deepnorm_decoder", 3, 5),
        ("decoder", "deepnorm", "deepnorm", 3, None),
    ],
)
def test_torchscales_constants(torchscale, side, option, name, layers, partner):
    """Which matrices are scaled, by how much, and the factor on the stream."""
    site = Site(0, 2 * layers, 2, 8, partner=partner)
    with torch.random.fork_rng():
        ratios, alpha = torchscale_ratios(torchscale, side, option, layers, partner)
    inverted = 1.15 / 0.87 if name == "deepnorm_encoder" else 1  # theirs divides where the paper's 0.87 = 1/1.15 multiplies
    for role, ratio in ratios.items():
        gain = placements.get(name).gain(role, site)
        assert ratio == pytest.approx(gain if gain == 1 else gain * inverted, rel=1e-5), role
    assert alpha == pytest.approx(placements.get(name).fixed(site).get("alpha", 1), rel=1e-12)
