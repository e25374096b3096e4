"""What both models share: many independent stacks of residual blocks with a leading model axis.

Models in a batch are ordered by depth, deepest first. Block l exists for the first n_l models alone and acts on
``x[:n_l]``, so that a shallow model costs nothing beyond its own depth. Every parameter has shape ``(n, ...)``, and
row i of it belongs to model i.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from resnorm_lib import norms, placements
from resnorm_lib.placements import Site

__all__ = ["Matrix", "Observe", "Slab", "Stack", "StackConfig", "ignore"]

Observe = Callable[[str, Tensor], object]
"""A callback that a model shows its tensors to: it is given the name of the point and the tensor."""

Branch = Callable[[Tensor, int], Tensor]


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """What a stack of residual blocks is made of; each model adds its own sizes.

    Attributes:
        width, hidden, depth: of the stream, inside a feed-forward branch, number L of layers.
        placement: a row of ``resnorm_lib.placements``.
        norm: one of ``resnorm_lib.norms.KINDS``.
        activation: one of ``resnorm_lib.models.ACTIVATIONS``.
        multiplier: constant factor on every branch, for placements that set none themselves.
        eps: inside the norm's square root.
        base_depth: layers at which the learning rate was tuned (``depth_mup`` and ``completep`` alone).
        partner: layers of the decoder (``deepnorm_encoder`` alone); as many as the encoder's where not given.
    """

    width: int
    hidden: int
    depth: int
    placement: str = "pre"
    norm: str = "layer_norm"
    activation: str = "relu"
    multiplier: float = 1.0
    eps: float = 1e-5
    base_depth: int = 1
    partner: int | None = None

    def check(self, *sizes: str) -> None:
        """Refuse what cannot be built, and say how to mend it."""
        for name in (*sizes, "width", "hidden", "depth", "base_depth"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} is not allowed: give at least 1")
        row = placements.get(self.placement)
        if self.norm not in norms.KINDS:
            raise ValueError(f"norm = {self.norm!r} is unknown; use one of {', '.join(norms.KINDS)}")
        if self.eps < 0:
            raise ValueError(f"eps = {self.eps} is not allowed: give zero or a small positive number")
        if self.partner is not None and self.partner < 1:
            raise ValueError(f"partner = {self.partner} is not allowed: give at least 1")
        if not abs(self.multiplier) < float("inf"):
            raise ValueError(f"multiplier = {self.multiplier} is not allowed: give a finite number")
        if self.multiplier != 1 and "c" in row.numbers():
            raise ValueError(
                f"multiplier = {self.multiplier} contradicts placement = {row.name!r}, which sets the branch's multiplier "
                "itself: leave multiplier at 1, or choose a placement without one"
            )
        for name, given in (("base_depth", self.base_depth != 1), ("partner", self.partner is not None)):
            if given and name not in row.options:
                readers = [r.name for r in placements.PLACEMENTS.values() if name in r.options]
                raise ValueError(
                    f"{name} = {getattr(self, name)} means nothing to placement = {row.name!r}: "
                    f"leave it out, or use {' or '.join(readers)}"
                )


@dataclass(frozen=True)
class Slab:
    """A parameter as it is drawn: matrices of one shape ``(rows, columns)`` side by side, each with its role."""

    name: str
    roles: tuple[str, ...]
    rows: int
    columns: int
    std: float
    branch: int | None = None


@dataclass(frozen=True)
class Matrix:
    """One weight matrix of a model, by reference: no name is matched.

    Attributes:
        role: one of ``resnorm_lib.placements.ROLES``.
        layer: number of its layer, from 0; ``None`` outside the blocks.
        parameter: the parameter that holds it, ``(n, rows, all columns)``.
        columns: its own columns there.
    """

    role: str
    layer: int | None
    parameter: nn.Parameter
    columns: slice

    @property
    def value(self) -> Tensor:
        """``(n, rows, columns)``, a view."""
        return self.parameter[..., self.columns]

    @property
    def gradient(self) -> Tensor | None:
        """As `value`, of the gradient."""
        return None if self.parameter.grad is None else self.parameter.grad[..., self.columns]


class Stack(nn.Module):
    """Residual blocks of one placement for many models; see the module's own description."""

    per_layer: int
    axes: int  # between the model axis and the width
    multiplier: Tensor | None

    def __init__(self, configs: Sequence[StackConfig], generators: Sequence[torch.Generator], free: set[str]) -> None:
        """Check that the models can share a batch.

        Args:
            configs: one for each model, deepest first.
            generators: one for each model.
            free: fields in which models may differ.

        Raises:
            ValueError: none or unequally many, fields that must agree and do not, or models not deepest first.
        """
        super().__init__()
        if not generators:
            raise ValueError("generators is empty: give one torch.Generator for each model")
        if len(configs) != len(generators):
            raise ValueError(f"there are {len(configs)} configs and {len(generators)} generators: give as many of each")
        for item in fields(configs[0]):
            values = [getattr(config, item.name) for config in configs]
            if item.name not in free and any(value != values[0] for value in values):
                raise ValueError(
                    f"{item.name} differs between models ({values[0]!r} and others): models of one batch may differ in "
                    f"{', '.join(sorted(free))} alone; build one batch for each {item.name}"
                )
        depths = [config.depth for config in configs]
        if depths != sorted(depths, reverse=True):
            raise ValueError(f"depths are {depths}: order the models by depth, deepest first")
        self.configs, self.models = tuple(configs), len(configs)
        self.placement = placements.get(configs[0].placement)
        self.alive = [sum(depth > layer for depth in depths) for layer in range(depths[0])]
        self.matrices: list[Matrix] = []

    def sites(self, branch: int | None) -> list[Site]:
        """Where branch ``branch`` stands in each model that has it (``None``: outside the blocks, in every model)."""
        index = branch or 0
        return [
            Site(index, self.per_layer * c.depth, self.per_layer, c.width, c.base_depth, c.partner)
            for c in self.configs
            if index < self.per_layer * c.depth
        ]

    def build(self, generators: Sequence[torch.Generator], slabs: list[list[Slab]], dtype: torch.dtype) -> None:
        """Draw the matrices of each model in the order of its slabs, and start everything that is not drawn.

        Args:
            generators: one for each model.
            slabs: what each model draws, a list for each, all with the same names.
            dtype: of the parameters; the draws are made in float64.
        """
        drawn: dict[str, list[Tensor]] = {}
        sites = {slab.branch: self.sites(slab.branch) for slab in slabs[0]}  # the first model is the deepest
        for model, (generator, own) in enumerate(zip(generators, slabs, strict=True)):
            for slab in own:
                site = sites[slab.branch][model]
                shape = (slab.rows, len(slab.roles), slab.columns)
                stds = [slab.std * self.placement.gain(role, site) for role in slab.roles]
                noise = torch.randn((slab.rows, shape[1] * shape[2]), generator=generator, dtype=torch.float64)
                weight = noise.view(shape) * torch.tensor(stds, dtype=torch.float64)[:, None]
                drawn.setdefault(slab.name, []).append(weight.flatten(1))
        self.weights = nn.ParameterDict({name: nn.Parameter(torch.stack(d).to(dtype)) for name, d in drawn.items()})
        for slab in slabs[0]:
            layer = None if slab.branch is None else slab.branch // self.per_layer
            for k, role in enumerate(slab.roles):
                columns = slice(k * slab.columns, (k + 1) * slab.columns)
                self.matrices.append(Matrix(role, layer, self.weights[slab.name], columns))
        self.gains, self.biases, self.slopes = nn.ParameterDict(), nn.ParameterDict(), nn.ParameterDict()
        self.learnt, self.shifts = nn.ParameterDict(), nn.ParameterDict()
        first = self.sites(None)[0]
        self._fixed, self._learnt = tuple(self.placement.fixed(first)), tuple(self.placement.learnt(first))
        self._outside = {"gains.final", "biases.final", "slopes.final"}
        self._outside |= {f"weights.{slab.name}" for slab in slabs[0] if slab.branch is None}
        for branch in range(self.per_layer * len(self.alive)):
            self._start_branch(branch, dtype)
        if self.placement.final_norm:
            self._start_norm("final", self.models, self.configs[0].width, dtype)
        multipliers = [config.multiplier for config in self.configs]
        changed = any(value != 1 for value in multipliers)
        self.register_buffer("multiplier", self._spread(multipliers, dtype) if changed else None, persistent=False)

    def _start_branch(self, branch: int, dtype: torch.dtype) -> None:
        row, config, n = self.placement, self.configs[0], self.alive[branch // self.per_layer]
        inner_width, shifts = self.inside(branch)
        for slot in range(row.norms):
            self._start_norm(f"{branch}_{slot}", n, config.width, dtype)
        if row.inner_norm:
            self._start_norm(f"{branch}_inner", n, inner_width, dtype)
        for place in range(shifts if row.scalar_biases else 0):
            self.shifts[f"{branch}_{place}"] = nn.Parameter(self._spread([0.0] * n, dtype))
        sites = self.sites(branch)
        for name in row.fixed(sites[0]):
            values = self._spread([row.fixed(site)[name] for site in sites], dtype)
            self.register_buffer(f"fixed_{name}_{branch}", values, persistent=False)
        if not row.shared or branch % self.per_layer == 0:
            for name in row.learnt(sites[0]):
                start = torch.stack([row.learnt(site)[name] for site in sites]).to(dtype)
                gap = self.axes + (row.streams > 1) - (start.ndim - 1) + 1
                self.learnt[f"{name}_{branch}"] = nn.Parameter(start.reshape(n, *[1] * gap, *start.shape[1:]))

    def _start_norm(self, key: str, n: int, width: int, dtype: torch.dtype) -> None:
        kind, shape = self.configs[0].norm, (n, *[1] * self.axes, width)
        self.gains[key] = nn.Parameter(torch.ones(shape, dtype=dtype))
        if kind in ("layer_norm", "dyt"):
            self.biases[key] = nn.Parameter(torch.zeros(shape, dtype=dtype))
        if kind == "dyt":
            self.slopes[key] = nn.Parameter(self._spread([0.5] * n, dtype))

    def _spread(self, values: list[float], dtype: torch.dtype) -> Tensor:
        """One number for each model, as a tensor that broadcasts to its stream."""
        return torch.tensor(values, dtype=torch.float64).to(dtype).reshape(-1, *[1] * (self.axes + 1))

    def inside(self, branch: int) -> tuple[int, int]:
        """Width of what enters the last matrix of a branch, and number of places for a scalar bias in it."""
        raise NotImplementedError

    def numbers(self, branch: int) -> dict[str, Tensor]:
        """The placement's numbers at this branch as they are now, by name, for the models that have it."""
        owner = branch - branch % self.per_layer if self.placement.shared else branch
        found = {name: getattr(self, f"fixed_{name}_{branch}") for name in self._fixed}
        return found | {name: self.learnt[f"{name}_{owner}"] for name in self._learnt}

    def norm(self, x: Tensor, key: str) -> Tensor:
        """The norm of ``x`` in one slot; the ``key`` is branch and place (``"3_0"``, ``"3_inner"``), or ``"final"``."""
        kind, eps = self.configs[0].norm, self.configs[0].eps
        slope = {"slope": self.slopes[key]} if kind == "dyt" else {}
        if key not in self.biases:
            return norms.apply(x, kind, eps=eps, weight=self.gains[key], **slope)
        return torch.addcmul(self.biases[key], norms.apply(x, kind, eps=eps, **slope), self.gains[key])

    def before_last(self, x: Tensor, branch: int) -> Tensor:
        """The inner norm of sub-LN on ``x``, where the placement has one for this ``branch``."""
        return self.norm(x, f"{branch}_inner") if self.placement.inner_norm else x

    def shift(self, x: Tensor, branch: int, place: int) -> Tensor:
        """``x`` with the scalar bias of Fixup, where the placement has one at this ``place`` of this ``branch``."""
        return x + self.shifts[f"{branch}_{place}"] if self.placement.scalar_biases else x

    def run(self, x: Tensor, branches: Sequence[Branch], observe: Observe) -> Tensor:
        """Through all blocks and the final norm: ``(models, ..., width)`` to the same.

        ``observe`` is told of ``stream/0`` to ``stream/L`` (block boundaries; ``(n, ..., width)``, or with a streams
        axis before the width; n models have that block), of ``between/l`` (between the two branches of layer l) and of
        ``branch/k`` (what branch k = 0 ... R - 1 gives to the stream).
        """
        row = self.placement
        state, finished = row.start(x), []
        observe("stream/0", state)
        for layer, n in enumerate(self.alive):
            if n < len(state):
                finished.append(state[n:])
                state = state[:n]
            for k, branch in enumerate(branches):
                index = self.per_layer * layer + k
                state = self._block(state, branch, index, observe)
                if k + 1 < len(branches):
                    observe(f"between/{layer}", state)
            observe(f"stream/{layer + 1}", state)
        state = torch.cat([state, *reversed(finished)]) if finished else state
        return row.finish(state, lambda z: self.norm(z, "final")) if row.final_norm else state

    def _block(self, x: Tensor, branch: Branch, index: int, observe: Observe) -> Tensor:
        def inside(z: Tensor) -> Tensor:
            y = branch(z, index)
            return y if self.multiplier is None else self.multiplier[: len(y)] * y

        def norm(z: Tensor, slot: int = 0) -> Tensor:
            return self.norm(z, f"{index}_{slot}")

        numbers = self.numbers(index)
        added = self.placement.increment(x, inside, norm, numbers)
        observe(f"branch/{index}", added)
        return self.placement.merge(x, added, norm, numbers)

    def rates(self, optimiser: str) -> dict[str, tuple[Tensor, Tensor]]:
        """What the placement multiplies learning rate and ε by: parameter name to two tensors ``(n,)``, one entry a model.

        Args:
            optimiser: ``"sgd"`` or ``"adam"``.

        Raises:
            ValueError: another optimiser, or one for which the scheme has no rule.
        """
        if optimiser not in ("sgd", "adam"):
            raise ValueError(f"optimiser = {optimiser!r} is unknown; use 'sgd' or 'adam'")
        scheme = [self.placement.rates(optimiser, site) for site in self.sites(None)]
        found = {}
        for name, parameter in self.named_parameters():
            own = [placements.Rates()] * self.models if name in self._outside else scheme[: len(parameter)]
            pairs = torch.tensor([(rates.learning_rate, rates.eps) for rates in own], dtype=torch.float64)
            found[name] = pairs[:, 0], pairs[:, 1]
        return found


def ignore(point: str, tensor: Tensor) -> None:
    """The observer that looks at nothing, whatever ``tensor`` it is shown at whatever ``point``."""
