"""The table of placements: how stream, branch and norm make a residual block, and how the branch starts.

A placement is one row. The models of the chapters, the notation page, the zero-branch control, the Jacobian
test and the figure styles are all made from the table, so that the equation a reader sees is the code that runs.

Branches are counted from 0, layers from 1. A layer of a transformer has two branches (attention and
feed-forward), a layer of a perceptron one. In the equations F is the branch with its own norms inside,
N and N' are the first and the second norm of a block, L is the number of layers and R that of branches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

__all__ = ["PLACEMENTS", "ROLES", "Placement", "Rates", "Site", "get", "sinkhorn"]

Map = Callable[[Tensor], Tensor]
Norm = Callable[..., Tensor]
Numbers = Mapping[str, Any]

ROLES = (
    *("embedding", "position", "stem", "head"),
    *("query", "key", "value", "attention_out", "feed_forward_in", "feed_forward_out"),
)
"""What a weight matrix is for; a placement chooses by it how the matrix starts."""
_WRITERS = ("attention_out", "feed_forward_out")
_VALUE_PATH = ("value", "feed_forward_in", *_WRITERS)


@dataclass(frozen=True)
class Site:
    """Which residual branch of which stack.

    Attributes:
        index, count: number of this branch, from 0, and number R of branches in the stack.
        per_layer: branches in a layer: 2 in a transformer, 1 in a perceptron.
        width: of the stream.
        base: layers of the stack at which the learning rate was tuned (CompleteP, Depth-μP).
        partner: layers of the decoder that this encoder feeds (DeepNorm); as many as its own where not given.
    """

    index: int = 0
    count: int = 1
    per_layer: int = 1
    width: int = 1
    base: int = 1
    partner: int | None = None

    @property
    def layer(self) -> int:
        """Number of the layer, from 1."""
        return self.index // self.per_layer + 1

    @property
    def layers(self) -> int:
        """Layers in the stack."""
        return self.count // self.per_layer


@dataclass(frozen=True)
class Rates:
    """What a scheme multiplies the optimiser's settings by, for the parameters inside the blocks."""

    learning_rate: float = 1.0
    eps: float = 1.0


def _add(x: Tensor, added: Tensor, norm: Norm, s: Numbers) -> Tensor:
    return x + added


def _pre(x: Tensor, branch: Map, norm: Norm, s: Numbers) -> Tensor:
    return branch(norm(x))


def _bare(x: Tensor, branch: Map, norm: Norm, s: Numbers) -> Tensor:
    return branch(x)


def _scaled_bare(x: Tensor, branch: Map, norm: Norm, s: Numbers) -> Tensor:
    return s["c"] * branch(x)  # type: ignore[no-any-return]


def _scaled_pre(x: Tensor, branch: Map, norm: Norm, s: Numbers) -> Tensor:
    return s["c"] * branch(norm(x))  # type: ignore[no-any-return]


def _finish(x: Tensor, norm: Map) -> Tensor:
    return norm(x)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """How stream, branch and norm make a residual block.

    The stream is ``(..., width)``, or ``(..., streams, width)`` where there are several. ``norm(z)`` is the block's
    first norm, ``norm(z, 1)`` its second. ``s`` holds the numbers of the block by name, see `numbers`.

    Attributes:
        name, title: the name used everywhere in the book, and the name in prose.
        equation: the block, in LaTeX.
        constants: the numbers in words.
        source, where: citation key, and the equation or section there.
        increment: ``increment(x, branch, norm, s)`` is what the branch gives to the stream.
        merge: ``merge(x, added, norm, s)`` is the next stream.
        norms: norms of one block; final_norm: whether one more stands before the head;
            inner_norm: whether the branch has one before its last matrix.
        streams: number of streams; start, finish: into the streams, and out of them through the final norm.
        fixed, learnt: numbers set by the site; starting values of those that are trained (scalars, ``(width,)``
            or matrices over streams). The branch multiplier is called ``c``.
        shared: whether the branches of a layer share the learnt numbers.
        scalar_biases: whether a learnt scalar is added before each matrix and each activation of a branch.
        gain: ``gain(role, site)`` multiplies the deviation at which a matrix of that role (`ROLES`) starts.
        rates: ``rates(optimiser, site)``, see `Rates`.
        options: settings of a model that only this row reads (``base_depth``, ``partner``).
        silent: what a block does whose branch is zero: leaves the stream (``identity``), norms it (``norm``),
            norms the first stream alone (``first norm``), or leaves nothing (``zero``).
    """

    name: str
    title: str
    equation: str
    source: str
    where: str
    increment: Callable[[Tensor, Map, Norm, Numbers], Tensor] = _pre
    merge: Callable[[Tensor, Tensor, Norm, Numbers], Tensor] = _add
    constants: str = "none"
    norms: int = 1
    final_norm: bool = True
    inner_norm: bool = False
    streams: int = 1
    start: Map = lambda x: x
    finish: Callable[[Tensor, Map], Tensor] = _finish
    fixed: Callable[[Site], dict[str, float]] = lambda site: {}
    learnt: Callable[[Site], dict[str, Tensor]] = lambda site: {}
    shared: bool = False
    scalar_biases: bool = False
    gain: Callable[[str, Site], float] = lambda role, site: 1.0
    rates: Callable[[str, Site], Rates] = lambda optimiser, site: Rates()
    options: tuple[str, ...] = ()
    silent: Literal["identity", "norm", "first norm", "zero"] = "identity"

    def numbers(self, site: Site = Site()) -> dict[str, Any]:
        """The block's numbers by name, as they start at this site: fixed ones are floats, learnt ones float64 tensors."""
        return {**self.fixed(site), **self.learnt(site)}

    def combine(self, x: Tensor, branch: Map, norm: Norm, s: Numbers | None = None) -> Tensor:
        """The block's output, by `equation`: ``merge(x, increment(x, branch, norm, s), norm, s)``.

        Args:
            x: the stream, ``(..., width)`` or ``(..., streams, width)``.
            branch, norm: functions of ``(..., width)`` that keep the shape.
            s: the numbers of the block; as they start in a stack of one branch, where not given.
        """
        s = self.numbers() if s is None else s
        return self.merge(x, self.increment(x, branch, norm, s), norm, s)


def sinkhorn(logits: Tensor, steps: int = 20) -> Tensor:
    """A matrix with positive entries, rows that sum to 1 and columns that nearly do.

    M ← exp(logits), then ``steps`` times: divide each column by its sum, then each row by its sum.
    Shapes: ``(..., n, n)`` to the same; any floating dtype.

    Source: Xie et al. 2025, eq. 9 (arXiv 2512.24880), with their 20 steps.
    """
    for _ in range(steps):  # of logarithms: nothing overflows
        logits = logits - logits.logsumexp(-2, keepdim=True)
        logits = logits - logits.logsumexp(-1, keepdim=True)
    return logits.exp()


def _post(x: Tensor, added: Tensor, norm: Norm, s: Numbers) -> Tensor:
    return norm(x + added)


def _deepnorm(x: Tensor, added: Tensor, norm: Norm, s: Numbers) -> Tensor:
    return norm(s["alpha"] * x + added)


def _early(s: Numbers, post: Tensor, pre: Tensor) -> Tensor:
    return torch.where(torch.as_tensor(s["early"], device=pre.device) > 0, post, pre)


def _gain(roles: tuple[str, ...], factor: Callable[[Site], float]) -> Callable[[str, Site], float]:
    return lambda role, site: factor(site) if role in roles else 1.0


def _t_fixup(factor: Callable[[int], float]) -> Callable[[str, Site], float]:
    def gain(role: str, site: Site) -> float:
        if role == "embedding":
            return float((9 * site.layers) ** -0.25)
        return factor(site.layers) if role in _VALUE_PATH else 1.0

    return gain


def _fixup(role: str, site: Site) -> float:
    if role in (*_WRITERS, "head"):
        return 0.0
    matrices = 2 if role == "feed_forward_in" else 4 if role in ("query", "key", "value") else math.inf
    return float(site.count ** (-1 / (2 * matrices - 2)))


def _sub_ln(site: Site) -> float:
    if site.count < 2:
        raise ValueError("placement = 'sub_ln' starts with zero weights in a stack of one branch: give at least two")
    return math.sqrt(math.log(site.count))


def _shape(site: Site) -> int:
    """N⁴M of an encoder–decoder, seen from the encoder."""
    return site.layers**4 * (site.partner or site.layers)


def _layer_scale(site: Site) -> dict[str, Tensor]:
    start = 0.1 if site.layers <= 18 else 1e-5 if site.layers <= 24 else 1e-6
    return {"c": torch.full((site.width,), start, dtype=torch.float64)}


def _scalar(value: float) -> Callable[[Site], dict[str, Tensor]]:
    return lambda site: {"c": torch.tensor(value, dtype=torch.float64)}


def _depth_mup(optimiser: str, site: Site) -> Rates:
    return Rates(learning_rate=(site.layers / site.base) ** -0.5 if optimiser == "adam" else 1.0)


def _complete_p(optimiser: str, site: Site) -> Rates:
    if optimiser != "adam":
        raise ValueError(f"optimiser = {optimiser!r} has no rule in CompleteP: use 'adam'")
    return Rates(eps=site.base / site.layers)


_STREAMS = 4


def _copies(x: Tensor) -> Tensor:
    return x.unsqueeze(-2).expand(*x.shape[:-1], _STREAMS, x.shape[-1])


def _hyper(site: Site) -> dict[str, Tensor]:
    eye = torch.eye(_STREAMS, dtype=torch.float64)
    return {"read": eye[site.index % _STREAMS, None], "write": torch.ones_like(eye[:, :1]), "mix": eye}


def _manifold(site: Site) -> dict[str, Tensor]:
    eye = torch.eye(_STREAMS, dtype=torch.float64)
    read = torch.full_like(eye[:1], -math.log(_STREAMS - 1))  # σ(read) = 1/n
    return {"read": read, "write": torch.zeros_like(eye[:, :1]), "mix": 8 * (eye - 1)}


_ROWS = (
    Placement(
        name="residual", title="residual, no norm", source="he2016deep", where="eq. 1",
        equation=r"x_{l+1} = x_l + F_l(x_l)",
        increment=_bare, norms=0, final_norm=False,
    ),
    Placement(
        name="pre", title="pre-norm", source="xiong2020layer", where="table 1",
        equation=r"x_{l+1} = x_l + F_l(\mathrm{N}(x_l))",
    ),
    Placement(
        name="post", title="post-norm", source="vaswani2017attention", where="section 3.1",
        equation=r"x_{l+1} = \mathrm{N}(x_l + F_l(x_l))",
        increment=_bare, merge=_post, final_norm=False, silent="norm",
    ),
    Placement(
        name="plain", title="plain, no skip", source="he2016deep", where="section 3.3",
        equation=r"x_{l+1} = F_l(x_l)",
        increment=_bare, merge=lambda x, added, norm, s: added, norms=0, final_norm=False, silent="zero",
    ),
    Placement(
        name="sandwich", title="sandwich or peri-norm", source="kim2025peri", where="section 3",
        equation=r"x_{l+1} = x_l + \mathrm{N}'(F_l(\mathrm{N}(x_l)))",
        increment=lambda x, branch, norm, s: norm(branch(norm(x)), 1), norms=2,
    ),
    Placement(
        name="reordered", title="reordered norm", source="olmo2025two", where="section 2.1, eq. 1 and 2",
        equation=r"x_{l+1} = x_l + \mathrm{N}(F_l(x_l))",
        increment=lambda x, branch, norm, s: norm(branch(x)),
    ),
    Placement(
        name="deepnorm", title="DeepNorm", source="wang2022deepnet", where="section 3, figure 2",
        equation=r"x_{l+1} = \mathrm{N}(\alpha x_l + F_l(x_l))",
        constants="α = R^(1/4); value, attention output and feed-forward matrices start β = (4R)^(-1/4) times smaller "
        "(N layers of two branches: (2N)^(1/4) and (8N)^(-1/4))",
        increment=_bare, merge=_deepnorm, final_norm=False, silent="norm",
        fixed=lambda site: {"alpha": site.count**0.25},
        gain=_gain(_VALUE_PATH, lambda site: (4 * site.count) ** -0.25),
    ),
    Placement(
        name="deepnorm_encoder", title="DeepNorm, encoder of an encoder–decoder", source="wang2022deepnet",
        where="section 3, figure 2",
        equation=r"x_{l+1} = \mathrm{N}(\alpha x_l + F_l(x_l))",
        constants="α = 0.81 (N⁴M)^(1/16), β = 0.87 (N⁴M)^(-1/16), for N encoder and M decoder layers",
        increment=_bare, merge=_deepnorm, final_norm=False, silent="norm", options=("partner",),
        fixed=lambda site: {"alpha": 0.81 * _shape(site) ** (1 / 16)},
        gain=_gain(_VALUE_PATH, lambda site: 0.87 * _shape(site) ** (-1 / 16)),
    ),
    Placement(
        name="deepnorm_decoder", title="DeepNorm, decoder of an encoder–decoder", source="wang2022deepnet",
        where="section 3, figure 2",
        equation=r"x_{l+1} = \mathrm{N}(\alpha x_l + F_l(x_l))",
        constants="α = (3M)^(1/4), β = (12M)^(-1/4), for M decoder layers",
        increment=_bare, merge=_deepnorm, final_norm=False, silent="norm",
        fixed=lambda site: {"alpha": (3 * site.layers) ** 0.25},
        gain=_gain(_VALUE_PATH, lambda site: (12 * site.layers) ** -0.25),
    ),
    Placement(
        name="rezero", title="ReZero", source="bachlechner2021rezero", where="eq. 1",
        equation=r"x_{l+1} = x_l + c_l F_l(x_l)",
        constants="c = 0 at the start, learnt, one for each layer",
        increment=_scaled_bare, norms=0, final_norm=False, learnt=_scalar(0.0), shared=True,
    ),
    Placement(
        name="skipinit", title="SkipInit", source="de2020batch", where="abstract; the block read in restatements",
        equation=r"x_{l+1} = x_l + c_l F_l(x_l)",
        constants="c = 0 at the start (the source also allows up to 1/√R), learnt, one for each branch",
        increment=_scaled_bare, norms=0, final_norm=False, learnt=_scalar(0.0),
    ),
    Placement(
        name="layerscale", title="LayerScale", source="touvron2021going", where="section 2, and the authors' code",
        equation=r"x_{l+1} = x_l + \mathrm{diag}(c_l)\, F_l(\mathrm{N}(x_l))",
        constants="each entry of c starts at 0.1 up to 18 layers, 1e-5 up to 24, 1e-6 beyond; learnt",
        increment=_scaled_pre, learnt=_layer_scale,
    ),
    Placement(
        name="fixup", title="Fixup", source="zhang2019fixup",
        where="the recipe as quoted by others, and the authors' code",
        equation=r"x_{l+1} = x_l + c_l F_l(x_l)",
        constants="c = 1 at the start, learnt; the branch's last matrix and the head start at zero, its other matrices "
        "R^(-1/(2m-2)) times as large, with m matrices in the branch: 2 in feed-forward, 4 in attention; learnt scalar biases",
        increment=_scaled_bare, norms=0, final_norm=False, learnt=_scalar(1.0), scalar_biases=True, gain=_fixup,
    ),
    Placement(
        name="t_fixup_encoder", title="T-Fixup, encoder", source="huang2020improving", where="the authors' code",
        equation=r"x_{l+1} = x_l + F_l(x_l)",
        constants="value, attention output and feed-forward matrices start 0.67 N^(-1/4) times as large, for N layers; "
        "token embeddings enter the stream with deviation (9N)^(-1/4)",
        increment=_bare, norms=0, final_norm=False, gain=_t_fixup(lambda layers: 0.67 * layers**-0.25),
    ),
    Placement(
        name="t_fixup_decoder", title="T-Fixup, decoder", source="huang2020improving", where="the authors' code",
        equation=r"x_{l+1} = x_l + F_l(x_l)",
        constants="as in the encoder, with (9M)^(-1/4) in place of 0.67 N^(-1/4), for M layers",
        increment=_bare, norms=0, final_norm=False, gain=_t_fixup(lambda layers: (9 * layers) ** -0.25),
    ),
    Placement(
        name="gpt2", title="GPT-2's residual initialisation", source="radford2019language", where="one sentence, read in quotations; it does not say whether N counts branches, as here",
        equation=r"x_{l+1} = x_l + F_l(\mathrm{N}(x_l))",
        constants="the last matrix of each branch starts R^(-1/2) times smaller",
        gain=_gain(_WRITERS, lambda site: site.count**-0.5),
    ),
    Placement(
        name="inverse_sqrt_depth", title="multiplier 1/√R", source="hayou2021stable", where="section 3",
        equation=r"x_{l+1} = x_l + F_l(\mathrm{N}(x_l)) / \sqrt{R}",
        constants="c = R^(-1/2), fixed; the source has no norm",
        increment=_scaled_pre, fixed=lambda site: {"c": site.count**-0.5},
    ),
    Placement(
        name="inverse_depth", title="multiplier 1/R", source="dey2025completep", where="section 3",
        equation=r"x_{l+1} = x_l + F_l(\mathrm{N}(x_l)) / R",
        constants="c = 1/R, fixed",
        increment=_scaled_pre, fixed=lambda site: {"c": 1 / site.count},
    ),
    Placement(
        name="depth_mup", title="Depth-μP", source="yang2023feature", where="table 1",
        equation=r"x_{l+1} = x_l + (L / L_0)^{-1/2}\, F_l(\mathrm{N}(x_l))",
        constants="c = (L/L₀)^(-1/2), fixed; Adam's learning rate in the blocks times (L/L₀)^(-1/2), SGD's unchanged",
        increment=_scaled_pre, fixed=lambda site: {"c": (site.layers / site.base) ** -0.5}, rates=_depth_mup,
        options=("base_depth",),
    ),
    Placement(
        name="completep", title="CompleteP", source="dey2025completep", where="table 1",
        equation=r"x_{l+1} = x_l + (L / L_0)^{-1} F_l(\mathrm{N}(x_l))",
        constants="c = L₀/L, fixed; Adam's learning rate in the blocks unchanged, its ε times L₀/L",
        increment=_scaled_pre, fixed=lambda site: {"c": site.base / site.layers}, rates=_complete_p,
        options=("base_depth",),
    ),
    Placement(
        name="layernorm_scaling", title="LayerNorm scaling", source="sun2025curse", where="section 4",
        equation=r"x_{l+1} = x_l + F_l(\mathrm{N}(x_l) / \sqrt{k_l})",
        constants="k is the number of the layer, from 1",
        increment=lambda x, branch, norm, s: branch(s["scale"] * norm(x)),
        fixed=lambda site: {"scale": site.layer**-0.5},
    ),
    Placement(
        name="sub_ln", title="sub-LN", source="wang2023magneto", where="section 2; section 3 after Theorem 3.2; the authors' code",
        equation=r"x_{l+1} = x_l + F_l(\mathrm{N}(x_l)),\ \text{with a norm before the last matrix of } F_l",
        constants="value, attention output and feed-forward matrices start √(ln R) times as large",
        inner_norm=True, gain=_gain(_VALUE_PATH, _sub_ln),
    ),
    Placement(
        name="resi_dual", title="ResiDual", source="xie2023residual", where="section 3.1, and the authors' code",
        equation=r"x_{l+1} = \mathrm{N}(x_l + F_l(x_l)),\quad y_{l+1} = y_l + F_l(x_l),\quad "
        r"\text{out } x_R + \mathrm{N}(y_R)",
        streams=2, silent="first norm",
        start=lambda x: torch.stack([x, x], -2),
        increment=lambda x, branch, norm, s: branch(x[..., 0, :]),
        merge=lambda x, added, norm, s: torch.stack([norm(x[..., 0, :] + added), x[..., 1, :] + added], -2),
        finish=lambda x, norm: x[..., 0, :] + norm(x[..., 1, :]),
    ),
    Placement(
        name="mix_ln", title="Mix-LN", source="li2025mixln",
        where="abstract; the share in the authors' later code (6 of 24 layers)",
        equation=r"x_{l+1} = \mathrm{N}(x_l + F_l(x_l)) \text{ early, } x_l + F_l(\mathrm{N}(x_l)) \text{ late}",
        constants="the first ⌊L/4⌋ layers are post-norm, the others pre-norm",
        increment=lambda x, branch, norm, s: branch(_early(s, x, norm(x))),
        merge=lambda x, added, norm, s: _early(s, norm(x + added), x + added),
        fixed=lambda site: {"early": float(site.layer <= site.layers // 4)},
    ),
    Placement(
        name="hyper_connections", title="hyper-connections", source="zhu2025hyper",
        where="eq. 2 and 14, algorithm 2",
        equation=r"X_{l+1} = A X_l + b\, F_l(\mathrm{N}(a X_l))",
        constants="4 streams, static and learnt; at the start A = I, b = 1, a reads stream l mod 4; "
        "the streams are summed at the end. The source also rescales the branches' last matrices by √n at the start, "
        "without saying which way; that is not done here",
        streams=_STREAMS, start=_copies, learnt=_hyper,
        increment=lambda x, branch, norm, s: branch(norm((s["read"] @ x).squeeze(-2))),
        merge=lambda x, added, norm, s: s["mix"] @ x + s["write"] * added.unsqueeze(-2),
        finish=lambda x, norm: norm(x.sum(-2)),
    ),
    Placement(
        name="manifold_hyper_connections", title="manifold-constrained hyper-connections", source="xie2025mhc",
        where="eq. 3, 8 and 9, read in summaries",
        equation=r"X_{l+1} = \mathrm{S}(A) X_l + 2\sigma(b)\, F_l(\mathrm{N}(\sigma(a) X_l))",
        constants="4 streams; S makes A doubly stochastic in 20 Sinkhorn steps; static and learnt; at the start "
        "σ(a) = 1/4, 2σ(b) = 1 and S(A) is near I (our choice); the streams are summed at the end",
        streams=_STREAMS, start=_copies, learnt=_manifold,
        increment=lambda x, branch, norm, s: branch(norm((s["read"].sigmoid() @ x).squeeze(-2))),
        merge=lambda x, added, norm, s: sinkhorn(s["mix"]) @ x + 2 * s["write"].sigmoid() * added.unsqueeze(-2),
        finish=lambda x, norm: norm(x.sum(-2)),
    ),
)  # fmt: skip
PLACEMENTS: dict[str, Placement] = {row.name: row for row in _ROWS}
"""The table: every placement by its name."""


def get(name: str) -> Placement:
    """The row of that name.

    Raises:
        ValueError: there is none; the message lists those that there are.
    """
    if name not in PLACEMENTS:
        raise ValueError(f"placement = {name!r} is unknown; use one of {', '.join(PLACEMENTS)}")
    return PLACEMENTS[name]
