"""Each placement written out from its source's equation, without the library: what its table is tested against.

``BLOCKS[name](x, F, N, learnt, layer, layers)`` is one block of a transformer with so many layers of two branches, for one
token: x is ``(width,)`` or ``(streams, width)``, N(z) and N(z, 1) are its norms, layers count from 1.
"""

import math

import torch
from torch import Tensor


def deepnorm(alpha):
    return lambda x, F, N, learnt, layer, layers: N(alpha(layers) * x + F(x))


def scaled(c):
    return lambda x, F, N, learnt, layer, layers: x + c(learnt, layers) * F(N(x))


def bare(x, F, N, learnt, layer, layers):
    return x + F(x)


def bare_learnt(x, F, N, learnt, layer, layers):
    return x + learnt["c"] * F(x)


def pre(x, F, N, learnt, layer, layers):
    return x + F(N(x))


def residual_dual(x, F, N, learnt, layer, layers):
    f = F(x[0])
    return torch.stack([N(x[0] + f), x[1] + f])


def mixed(x, F, N, learnt, layer, layers):
    return N(x + F(x)) if layer <= math.floor(0.25 * layers) else x + F(N(x))


def streams(x, f, mix, write):
    rows = [sum(mix[i, j] * x[j] for j in range(len(x))) + write[i] * f for i in range(len(x))]
    return torch.stack(rows)


def hyper(x, F, N, learnt, layer, layers):
    f = F(N(sum(a * stream for a, stream in zip(learnt["read"].flatten(), x, strict=True))))
    return streams(x, f, learnt["mix"].reshape(4, 4), learnt["write"].flatten())


def doubly_stochastic(logits: Tensor):
    matrix = torch.exp(logits)
    for _ in range(20):
        matrix = torch.stack([column / column.sum() for column in matrix.T]).T
        matrix = torch.stack([row / row.sum() for row in matrix])
    return matrix


def manifold(x, F, N, learnt, layer, layers):
    read = 1 / (1 + torch.exp(-learnt["read"].flatten()))
    write = 2 / (1 + torch.exp(-learnt["write"].flatten()))
    f = F(N(sum(a * stream for a, stream in zip(read, x, strict=True))))
    return streams(x, f, doubly_stochastic(learnt["mix"].reshape(4, 4)), write)


BLOCKS = {
    "residual": bare,
    "pre": pre,
    "post": lambda x, F, N, learnt, layer, layers: N(x + F(x)),
    "plain": lambda x, F, N, learnt, layer, layers: F(x),
    "sandwich": lambda x, F, N, learnt, layer, layers: x + N(F(N(x)), 1),
    "reordered": lambda x, F, N, learnt, layer, layers: x + N(F(x)),
    "deepnorm": deepnorm(lambda n: (2 * n) ** (1 / 4)),
    "deepnorm_encoder": deepnorm(lambda n: 0.81 * (n**4 * n) ** (1 / 16)),
    "deepnorm_decoder": deepnorm(lambda n: (3 * n) ** (1 / 4)),
    "rezero": bare_learnt,
    "skipinit": bare_learnt,
    "layerscale": scaled(lambda learnt, n: learnt["c"].flatten()),
    "fixup": bare_learnt,
    "t_fixup_encoder": bare,
    "t_fixup_decoder": bare,
    "gpt2": pre,
    "inverse_sqrt_depth": scaled(lambda learnt, n: 1 / math.sqrt(2 * n)),
    "inverse_depth": scaled(lambda learnt, n: 1 / (2 * n)),
    "depth_mup": scaled(lambda learnt, n: 1 / math.sqrt(n)),
    "completep": scaled(lambda learnt, n: 1 / n),
    "layernorm_scaling": lambda x, F, N, learnt, layer, layers: x + F(N(x) / math.sqrt(layer)),
    "sub_ln": pre,
    "resi_dual": residual_dual,
    "mix_ln": mixed,
    "hyper_connections": hyper,
    "manifold_hyper_connections": manifold,
}
STREAMS = {"resi_dual": 2, "hyper_connections": 4, "manifold_hyper_connections": 4}
NO_FINAL_NORM = {
    *("residual", "plain", "post", "deepnorm", "deepnorm_encoder", "deepnorm_decoder"),
    *("rezero", "skipinit", "fixup", "t_fixup_encoder", "t_fixup_decoder"),
}


def enter(name, x):
    """The stream or streams at the bottom."""
    return torch.stack([x] * STREAMS[name]) if name in STREAMS else x


def leave(name, x, N):
    """What the head sees."""
    if name == "resi_dual":
        return x[0] + N(x[1])
    if name in STREAMS:
        x = sum(x)
    return x if name in NO_FINAL_NORM else N(x)


VALUE_PATH = ("value", "attention_out", "feed_forward_in", "feed_forward_out")


def start(name, role, layers):
    """What the source multiplies a matrix of this role by at the start, in a transformer of so many layers."""
    writes = role in ("attention_out", "feed_forward_out")
    factors = {
        "deepnorm": (8 * layers) ** -0.25,
        "deepnorm_encoder": 0.87 * (layers**5) ** (-1 / 16),
        "deepnorm_decoder": (12 * layers) ** -0.25,
        "t_fixup_encoder": 0.67 * layers**-0.25,
        "t_fixup_decoder": (9 * layers) ** -0.25,
        "sub_ln": math.sqrt(math.log(2 * layers)),
    }
    if name.startswith("t_fixup") and role == "embedding":
        return (9 * layers) ** -0.25
    if name == "gpt2" and writes:
        return 1 / math.sqrt(2 * layers)
    if name == "fixup":
        root = {"query": 1 / 6, "key": 1 / 6, "value": 1 / 6, "feed_forward_in": 1 / 2}
        return 0 if writes or role == "head" else (2 * layers) ** -root.get(role, 0)
    return factors.get(name, 1) if role in VALUE_PATH else 1
