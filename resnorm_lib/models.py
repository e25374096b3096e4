"""Models written once, with a leading model axis: many independent models are trained as one.

One model is the case ``models = 1``; there is no second code path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from resnorm_lib import norms, placements

__all__ = ["TransformerConfig", "TransformerLM"]


@dataclass(frozen=True)
class TransformerConfig:
    """Shape of a decoder-only transformer.

    Attributes:
        vocabulary, length: number of tokens in the language and in a sequence.
        width, depth, heads, hidden: d, number of blocks (of two sublayers), attention heads, feed-forward width.
        placement: a row of ``resnorm_lib.placements``.
        norm: one of ``resnorm_lib.norms.KINDS``.
        eps: inside the norm's square root.
    """

    vocabulary: int
    length: int
    width: int
    depth: int
    heads: int
    hidden: int
    placement: str = "pre"
    norm: str = "layer_norm"
    eps: float = 1e-5

    def __post_init__(self) -> None:
        """Refuse what cannot be built, and say how to mend it."""
        for name in ("vocabulary", "length", "width", "depth", "heads", "hidden"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} is not allowed: give at least 1")
        if self.width % self.heads:
            raise ValueError(f"width = {self.width} is not a multiple of heads = {self.heads}: change one of them")
        placements.get(self.placement)
        if self.norm not in norms.KINDS:
            raise ValueError(f"norm = {self.norm!r} is unknown; use one of {', '.join(norms.KINDS)}")


class TransformerLM(nn.Module):
    """Causal transformers with learnt positions, no linear biases and an untied head.

    Weights are Xavier normal, embeddings and positions have unit variance; norms carry gain and bias
    (RMSNorm and none: gain alone). Every parameter has shape ``(models, ...)``.
    """

    def __init__(
        self, config: TransformerConfig, generators: Sequence[torch.Generator], dtype: torch.dtype = torch.float32
    ) -> None:
        """Draw one model from each generator, one after the other: a model does not depend on its companions.

        Raises:
            ValueError: no generator.
        """
        super().__init__()
        if not generators:
            raise ValueError("generators is empty: give one torch.Generator for each model")
        self.config, self.models = config, len(generators)
        c, placement = config, placements.get(config.placement)
        shapes = {"embedding": (c.vocabulary, c.width), "position": (c.length, c.width), "head": (c.width, c.vocabulary)}
        for layer in range(c.depth):
            shapes[f"query_key_value_{layer}"] = (c.width, 3 * c.width)
            shapes[f"attention_out_{layer}"] = (c.width, c.width)
            shapes[f"feed_forward_in_{layer}"] = (c.width, c.hidden)
            shapes[f"feed_forward_out_{layer}"] = (c.hidden, c.width)
        drawn: dict[str, list[Tensor]] = {name: [] for name in shapes}
        for generator in generators:
            for name, shape in shapes.items():
                # Query, key and value are three square matrices side by side: Xavier's fan is theirs, not the slab's.
                fan = 2 * c.width if name.startswith("query_key_value") else sum(shape)
                std = 1.0 if name in ("embedding", "position") else (2 / fan) ** 0.5
                drawn[name].append(torch.randn(shape, generator=generator, dtype=torch.float64) * std)
        self.weights = nn.ParameterDict({name: nn.Parameter(torch.stack(d).to(dtype)) for name, d in drawn.items()})
        slots = 2 * c.depth + placement.final_norm
        vector = (slots, self.models, 1, 1, c.width)
        self.gain = nn.Parameter(torch.ones(vector, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(vector, dtype=dtype)) if c.norm == "layer_norm" else None

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token: ``(models, sequences, length)`` to ``(models, sequences, length, vocabulary)``."""
        combine = placements.get(self.config.placement).combine
        w = self.weights
        x = w["embedding"][torch.arange(self.models)[:, None, None], tokens] + w["position"][:, None, : tokens.shape[-1]]
        for layer in range(self.config.depth):
            x = combine(x, lambda z: self._attention(z, layer), lambda z: self._norm(z, 2 * layer))  # noqa: B023
            x = combine(x, lambda z: self._feed_forward(z, layer), lambda z: self._norm(z, 2 * layer + 1))  # noqa: B023
        if placements.get(self.config.placement).final_norm:
            x = self._norm(x, -1)
        return _product(x, w["head"])

    def _norm(self, x: Tensor, slot: int) -> Tensor:
        y = norms.apply(x, self.config.norm, eps=self.config.eps, weight=self.gain[slot])
        return y if self.bias is None else y + self.bias[slot]

    def _attention(self, x: Tensor, layer: int) -> Tensor:
        models, sequences, length, width = x.shape
        slab = _product(x, self.weights[f"query_key_value_{layer}"])
        heads = slab.view(models * sequences, length, 3, self.config.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(models, sequences, length, width)
        return _product(mixed, self.weights[f"attention_out_{layer}"])

    def _feed_forward(self, x: Tensor, layer: int) -> Tensor:
        hidden = functional.relu(_product(x, self.weights[f"feed_forward_in_{layer}"]))
        return _product(hidden, self.weights[f"feed_forward_out_{layer}"])


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """``(models, sequences, length, a)`` times ``(models, a, b)``, one batched product."""
    models, sequences, length, _ = x.shape
    return torch.bmm(x.flatten(1, 2), weight).view(models, sequences, length, -1)
