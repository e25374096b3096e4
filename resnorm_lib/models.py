"""Models written once, with a leading model axis: many independent models are trained as one.

One model is the case ``models = 1``; there is no second code path. What the two models share is in ``resnorm_lib.stack``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from resnorm_lib import norms
from resnorm_lib.stack import Observe, Slab, Stack, StackConfig, ignore

__all__ = ["ACTIVATIONS", "QK_NORMS", "MLPConfig", "ResidualMLP", "TransformerConfig", "TransformerLM"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
    "silu": functional.silu,
}
"""What a branch may have between its matrices, by name; each is applied entry by entry."""
QK_NORMS = ("none", "layer_norm", "rms_norm", "l2")
"""What may be done to queries and keys before their product, see `TransformerConfig`."""


def _check_activation(config: StackConfig) -> None:
    if config.activation not in ACTIVATIONS:
        raise ValueError(f"activation = {config.activation!r} is unknown; use one of {', '.join(ACTIVATIONS)}")


@dataclass(frozen=True, kw_only=True)
class MLPConfig(StackConfig):
    """A residual perceptron: stem, ``depth`` blocks of two matrices, head; no linear biases.

    Attributes:
        inputs, outputs: sizes of input and output.
        stem_gain, inner_gain, outer_gain, head_gain: g of each matrix, drawn with deviation g/√fan-in times the
            placement's factor; √2 is He's scale, 1 LeCun's.

    The other attributes are those of ``resnorm_lib.stack.StackConfig``.
    """

    inputs: int
    outputs: int
    stem_gain: float = 1.0
    inner_gain: float = math.sqrt(2)
    outer_gain: float = 1.0
    head_gain: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what cannot be built, and say how to mend it."""
        self.check("inputs", "outputs")
        _check_activation(self)


class ResidualMLP(Stack):
    """Residual perceptrons: x₀ = W_s u, F_l(z) = W₂ φ(W₁ z), logits W_h x_L (with a final norm where the placement has one).

    Parameters: ``weights`` (``stem``, ``head``, ``feed_forward_in_l``, ``feed_forward_out_l``; ``(n, fan-in, fan-out)``),
    and gains, biases and slopes of norms, ``(n, 1, width)``.
    """

    per_layer, axes = 1, 1

    def __init__(
        self, configs: Sequence[MLPConfig], generators: Sequence[torch.Generator], dtype: torch.dtype = torch.float32
    ) -> None:
        """Draw one model from each generator: a model does not depend on its companions.

        Args:
            configs: one for each model, deepest first; they may differ in depth, multiplier and the four gains.
            generators: one for each model.
            dtype: of the parameters; they are drawn in float64.

        Raises:
            ValueError: no generator, unequal numbers of both, configs that differ elsewhere or are out of order.
        """
        super().__init__(configs, generators, {"depth", "multiplier", "stem_gain", "inner_gain", "outer_gain", "head_gain"})
        self.build(generators, [self._slabs(config) for config in configs], dtype)

    @staticmethod
    def _slabs(c: MLPConfig) -> list[Slab]:
        slabs = [
            Slab("stem", ("stem",), c.inputs, c.width, c.stem_gain / c.inputs**0.5),
            Slab("head", ("head",), c.width, c.outputs, c.head_gain / c.width**0.5),
        ]
        for k in range(c.depth):
            std = c.inner_gain / c.width**0.5
            slabs.append(Slab(f"feed_forward_in_{k}", ("feed_forward_in",), c.width, c.hidden, std, k))
            std = c.outer_gain / c.hidden**0.5
            slabs.append(Slab(f"feed_forward_out_{k}", ("feed_forward_out",), c.hidden, c.width, std, k))
        return slabs

    def inside(self, branch: int) -> tuple[int, int]:
        """Width of what enters a branch's last matrix, and number of places for a scalar bias in it."""
        return self.configs[0].hidden, 3

    def forward(self, x: Tensor, observe: Observe | None = None) -> Tensor:
        """Outputs: ``(models, batch, inputs)`` to ``(models, batch, outputs)``, in the parameters' dtype.

        Args:
            x: the inputs of each model.
            observe: ``observe(point, tensor)`` is called at ``stream/0`` ... ``stream/L``, ``branch/0`` ... and ``logits``
                (see ``resnorm_lib.stack.Stack.run``).

        Raises:
            ValueError: another shape.
        """
        config = self.configs[0]
        assert isinstance(config, MLPConfig)
        if x.ndim != 3 or (len(x), x.shape[-1]) != (self.models, config.inputs):
            raise ValueError(
                f"x has shape {tuple(x.shape)}: give (models, batch, inputs) with {self.models} models, {config.inputs} inputs"
            )
        observe = observe or ignore
        out = torch.bmm(self.run(torch.bmm(x, self.weights["stem"]), [self._feed_forward], observe), self.weights["head"])
        observe("logits", out)
        return out

    def _feed_forward(self, x: Tensor, branch: int) -> Tensor:
        return feed_forward(self, x, branch, branch, torch.bmm)


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(StackConfig):
    """Shape of a decoder-only transformer (an encoder with a head, where it is not causal).

    Attributes:
        vocabulary, length: number of tokens in the language and in a sequence.
        heads: attention heads; ``width`` is a multiple.
        qk_norm: one of `QK_NORMS`. ``layer_norm`` and ``rms_norm`` norm queries and keys within each head, with learnt
            gains and no biases, and keep the factor 1/√(width/heads); ``l2`` divides both by their lengths and replaces that factor by
            a learnt one that starts at log₂(length² - length).
        causal: whether a token sees earlier ones alone.

    The other attributes are those of ``resnorm_lib.stack.StackConfig``. Source of ``l2``: Henry et al. 2020,
    section 3 (arXiv 2010.04245).
    """

    vocabulary: int
    length: int
    heads: int
    qk_norm: str = "none"
    causal: bool = True

    def __post_init__(self) -> None:
        """Refuse what cannot be built, and say how to mend it."""
        self.check("vocabulary", "length", "heads")
        _check_activation(self)
        if self.width % self.heads:
            raise ValueError(f"width = {self.width} is not a multiple of heads = {self.heads}: change one of them")
        if self.qk_norm not in QK_NORMS:
            raise ValueError(f"qk_norm = {self.qk_norm!r} is unknown; use one of {', '.join(QK_NORMS)}")
        if self.qk_norm == "l2" and self.length < 3:
            raise ValueError(f"qk_norm = 'l2' starts at log₂(length² - length), too small at length = {self.length}: give 3")


class TransformerLM(Stack):
    """Transformers with learnt positions, no linear biases and an untied head; each layer is attention, then feed-forward.

    Weights are Xavier normal, times the placement's factor: query, key and value each on its own, though one parameter
    holds the three side by side. Embeddings and positions have unit variance. Norms carry gain and bias (RMSNorm and
    none: gain alone), ``(n, 1, 1, width)``. Every parameter has shape ``(n, ...)``.
    """

    per_layer, axes = 2, 2

    def __init__(
        self,
        config: TransformerConfig | Sequence[TransformerConfig],
        generators: Sequence[torch.Generator],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Draw one model from each generator: a model does not depend on its companions.

        Args:
            config: one for all models, or one for each, deepest first; they may differ in depth and multiplier.
            generators: one for each model.
            dtype: of the parameters; they are drawn in float64.

        Raises:
            ValueError: no generator, unequal numbers of both, configs that differ elsewhere or are out of order.
        """
        configs = [config] * len(generators) if isinstance(config, TransformerConfig) else list(config)
        super().__init__(configs, generators, {"depth", "multiplier"})
        self.config = c = configs[0]
        self.build(generators, [self._slabs(own) for own in configs], dtype)
        self.qk = nn.ParameterDict()
        for layer, n in enumerate(self.alive):
            if c.qk_norm == "l2":
                start = math.log2(c.length**2 - c.length)
                self.qk[f"logit_gain_{layer}"] = nn.Parameter(torch.full((n, 1, 1, 1, 1), start, dtype=dtype))
            elif c.qk_norm != "none":
                for name in ("query", "key"):
                    shape = (n, 1, 1, 1, c.width // c.heads)
                    self.qk[f"{name}_gain_{layer}"] = nn.Parameter(torch.ones(shape, dtype=dtype))

    @staticmethod
    def _slabs(c: TransformerConfig) -> list[Slab]:
        def xavier(name: str, roles: tuple[str, ...], rows: int, columns: int, branch: int | None = None) -> Slab:
            return Slab(name, roles, rows, columns, (2 / (rows + columns)) ** 0.5, branch)

        slabs = [
            Slab("embedding", ("embedding",), c.vocabulary, c.width, 1.0),
            Slab("position", ("position",), c.length, c.width, 1.0),
            xavier("head", ("head",), c.width, c.vocabulary),
        ]
        for k in range(c.depth):
            slabs += [
                xavier(f"query_key_value_{k}", ("query", "key", "value"), c.width, c.width, 2 * k),
                xavier(f"attention_out_{k}", ("attention_out",), c.width, c.width, 2 * k),
                xavier(f"feed_forward_in_{k}", ("feed_forward_in",), c.width, c.hidden, 2 * k + 1),
                xavier(f"feed_forward_out_{k}", ("feed_forward_out",), c.hidden, c.width, 2 * k + 1),
            ]
        return slabs

    def inside(self, branch: int) -> tuple[int, int]:
        """Width of what enters a branch's last matrix, and number of places for a scalar bias in it."""
        return (self.config.hidden, 3) if branch % 2 else (self.config.width, 2)

    def forward(self, tokens: Tensor, observe: Observe | None = None) -> Tensor:
        """Logits: ``(models, sequences, length)`` to ``(models, sequences, length, vocabulary)``, in the parameters' dtype.

        Args:
            tokens: integers below ``vocabulary``; a shorter length than the config's is allowed.
            observe: ``observe(point, tensor)`` is called at ``stream/0`` ... ``stream/L``, ``between/l``, ``branch/k`` (see
                ``resnorm_lib.stack.Stack.run``), ``attention_logits/l`` (scaled, -inf where masked) and ``attention/l``
                (both detached, ``(n, sequences, heads, length, length)``, computed for the observer alone), ``logits``.

        Raises:
            ValueError: another number of models, or sequences that are too long.
        """
        if tokens.ndim != 3 or len(tokens) != self.models or tokens.shape[-1] > self.config.length:
            raise ValueError(
                f"tokens have shape {tuple(tokens.shape)}: give (models, sequences, length) with {self.models} models "
                f"and at most {self.config.length} tokens"
            )
        w, watch = self.weights, observe or ignore
        x = w["embedding"][torch.arange(self.models)[:, None, None], tokens] + w["position"][:, None, : tokens.shape[-1]]
        x = self.run(x, [lambda z, branch: self._attention(z, branch, observe), self._feed_forward], watch)
        logits = _product(x, w["head"])
        watch("logits", logits)
        return logits

    def _attention(self, x: Tensor, branch: int, observe: Observe | None) -> Tensor:
        models, sequences, length, width = x.shape
        layer, causal = branch // 2, self.config.causal
        slab = _product(self.shift(x, branch, 0), self.weights[f"query_key_value_{layer}"])
        heads = slab.view(models * sequences, length, 3, self.config.heads, -1).transpose(1, 3)
        query, key, value = heads.unbind(2)  # its gradient is one copy, where indexing would add three zero-filled ones
        query, key, scale = self._qk_norm(query, key, layer)
        if observe is not None:
            logits = scale * (query @ key.mT).detach().view(models, sequences, -1, length, length)
            if causal:
                logits = logits.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -torch.inf)
            observe(f"attention_logits/{layer}", logits)
            observe(f"attention/{layer}", logits.softmax(-1))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scale)
        mixed = mixed.transpose(1, 2).reshape(models, sequences, length, width)
        mixed = self.before_last(self.shift(mixed, branch, 1), branch)
        return _product(mixed, self.weights[f"attention_out_{layer}"])

    def _qk_norm(self, query: Tensor, key: Tensor, layer: int) -> tuple[Tensor, Tensor, float]:
        """Queries and keys as they are compared, and the factor on their products."""
        kind, scale = self.config.qk_norm, 1 / math.sqrt(query.shape[-1])
        if kind == "none":
            return query, key, scale
        models, qk = self.alive[layer], self.qk
        pair = [z.reshape(models, -1, *z.shape[1:]) for z in (query, key)]
        if kind == "l2":
            query, key = (functional.normalize(z, dim=-1) for z in pair)
            return (query * qk[f"logit_gain_{layer}"]).flatten(0, 1), key.flatten(0, 1), 1.0
        query, key = (
            norms.apply(z, kind, eps=self.config.eps, weight=qk[f"{name}_gain_{layer}"])
            for name, z in zip(("query", "key"), pair, strict=True)
        )
        return query.flatten(0, 1), key.flatten(0, 1), scale

    def _feed_forward(self, x: Tensor, branch: int) -> Tensor:
        return feed_forward(self, x, branch, branch // 2, _product)


def feed_forward(
    model: Stack, x: Tensor, branch: int, layer: int, product: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """W₂ φ(W₁ x), the branch that both models have, with the inner norm and the scalar biases of some placements."""
    hidden = product(model.shift(x, branch, 0), model.weights[f"feed_forward_in_{layer}"])
    hidden = ACTIVATIONS[model.configs[0].activation](model.shift(hidden, branch, 1))
    hidden = model.before_last(model.shift(hidden, branch, 2), branch)
    return product(hidden, model.weights[f"feed_forward_out_{layer}"])


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """``(models, sequences, length, a)`` times ``(models, a, b)``, one batched product."""
    models, sequences, length, _ = x.shape
    return torch.bmm(x.flatten(1, 2), weight).view(models, sequences, length, -1)
