"""The stored runs of ``ch_deepnorm``: a thousand branches, and the table of placements side by side.

An *arm* is one placement on one task: all its learning rates, warmups and seeds are trained as one ensemble. Arms of
one seed share data, and weights where the placement does not change their scale. What is stored of an arm has the
shape (learning rates, warmups, seeds[, points]); a number that is not finite is stored as null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from resnorm_lib import ensemble, models, placements, probes, recording, tasks

Sizes = dict[str, Any]
Grid = tuple[list[float], list[int]]  # learning rates, warmups

PUBLISHED: Sizes = {
    "seeds": 5, "first_seed": 4000, "width": 16, "warmup": 25,
    "layers": 500, "vocabulary": 4, "concentration": 0.1, "length": 8, "sequences": 4, "steps": 80,
    "rates": [0.0003, 0.001, 0.003],
    "blocks": 1000, "batch": 32, "mlp_steps": 30,
    "family_layers": 64, "family_steps": 40, "family_rates": [0.001, 0.003, 0.01],
    "short": 4, "middle": 24, "streams_layers": 32,
}  # fmt: skip
QUICK: Sizes = PUBLISHED | {
    "seeds": 2, "warmup": 2, "layers": 2, "steps": 2, "rates": [0.001], "blocks": 3, "mlp_steps": 2,
    "family_layers": 4, "family_steps": 2, "family_rates": [0.001], "short": 2, "middle": 4, "streams_layers": 2,
}  # fmt: skip
METHODS = ("deepnorm", "post", "pre", "inverse_sqrt_depth")


class Lab:
    """Both tasks, and how an arm is trained on them."""

    def __init__(self, sizes: Sizes) -> None:
        """Draw the teacher, the language and what is held out: the same for all arms."""
        self.p = sizes
        self.seeds = range(sizes["first_seed"], sizes["first_seed"] + sizes["seeds"])
        self.teacher = tasks.Teacher.draw(tasks.generator(1, "teacher"))
        self.inputs = tasks.generator(1, "held out").standard_normal((512, 8))
        language = tasks.generator(1, "language")
        self.language = tasks.MarkovSource.draw(sizes["vocabulary"], sizes["concentration"], language)
        tokens = self.language.sample(128, sizes["length"], tasks.generator(1, "held-out tokens"))
        self.tokens = self.language.examples(tokens)[0]

    def law(self) -> np.ndarray:
        """ln p of the next token at each place of the held-out sequences: (sequences, length, vocabulary)."""
        t, pairs = self.tokens, self.language.pairs
        first = pairs[t[:, 0]] / pairs[t[:, 0]].sum(-1, keepdims=True)
        rest = self.language.table[t[:, :-1], t[:, 1:]]
        return np.log(np.concatenate([first[:, None], rest], 1).clip(1e-300))

    def ignorance(self) -> dict[str, float]:
        """Divergence of the best guess that ignores the input; of the best from the last token alone, too."""
        law, pairs = self.law(), self.language.pairs
        single = pairs.sum(1)
        bigram = np.log(pairs / single[:, None])[self.tokens]
        labels = self.teacher.log_probabilities(self.inputs)
        return {
            "transformer": _divergence(law, np.log(single)),
            "transformer, last token": _divergence(law, bigram),
            "perceptron": _divergence(labels, np.log(np.exp(labels).mean(0))),
        }

    def transformer(self, grid: Grid, **config: Any) -> models.TransformerLM:
        """One model for each rate, warmup and seed."""
        p = self.p
        shape = {"vocabulary": p["vocabulary"], "length": p["length"], "heads": 2, "width": p["width"]}
        shape |= config
        generators = [torch.Generator().manual_seed(seed) for seed in self._each(grid)]
        return models.TransformerLM(
            models.TransformerConfig(**shape, hidden=2 * shape["width"]), generators, torch.float32
        )

    def perceptron(self, grid: Grid, dtype: torch.dtype, **config: Any) -> models.ResidualMLP:
        """As `transformer`."""
        shape = {
            "inputs": 8,
            "outputs": 4,
            "width": self.p["width"],
            "hidden": self.p["width"],
            "depth": self.p["blocks"],
        }
        each = self._each(grid)
        configs = [models.MLPConfig(**shape | config)] * len(each)
        return models.ResidualMLP(configs, [torch.Generator().manual_seed(seed) for seed in each], dtype)

    def train(self, model: Any, grid: Grid, steps: int, optimiser: ensemble.Adam) -> dict[str, Any]:
        """What is stored of an arm: losses (means of five steps), held-out divergence, and two diagnostics, before and after."""
        shape = (len(grid[0]), len(grid[1]), len(self.seeds))
        language = isinstance(model, models.TransformerLM)
        dtype = next(model.parameters()).dtype

        def labels(grid: Grid, steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            return ((x.to(dtype), y) for x, y in self._labels(grid, steps))

        batches = self._tokens if language else labels
        probe = next(batches(grid, 1))
        before = self._diagnose(model, probe)
        rates = [rate for rate in grid[0] for _ in grid[1] for _ in self.seeds]
        warmups = [warmup for _ in grid[0] for warmup in grid[1] for _ in self.seeds]
        given = {"optimiser": optimiser, "learning_rates": rates, "warmups": warmups}
        losses = ensemble.train(model, batches(grid, steps), ensemble.cross_entropy, **given).losses.double().numpy()
        width = min(5, steps)
        curve = losses[: steps // width * width].reshape(-1, width, *shape).mean(1)
        found = {"kl": self._score(model).reshape(shape), "curve": np.moveaxis(curve, 0, -1)}
        for name, values in self._diagnose(model, probe).items():
            found |= {f"{name} before": before[name].reshape(shape), f"{name} after": values.reshape(shape)}
        return found

    def _each(self, grid: Grid) -> list[int]:
        return [seed for _ in grid[0] for _ in grid[1] for seed in self.seeds]

    def _tokens(self, grid: Grid, steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        copies, p = len(grid[0]) * len(grid[1]), self.p
        generators = [tasks.generator(seed, "tokens") for seed in self.seeds]
        for _ in range(steps):
            drawn = np.stack([self.language.sample(p["sequences"], p["length"], g) for g in generators] * copies)
            seen, asked = self.language.examples(drawn)
            yield torch.from_numpy(seen.copy()), torch.from_numpy(asked.copy())

    def _labels(self, grid: Grid, steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        copies = len(grid[0]) * len(grid[1])
        generators = [tasks.generator(seed, "training data") for seed in self.seeds]
        for _ in range(steps):
            x, y = zip(*(self.teacher.sample(self.p["batch"], g) for g in generators), strict=True)
            yield torch.from_numpy(np.stack(x * copies)), torch.from_numpy(np.stack(y * copies))

    @torch.no_grad()
    def _score(self, model: Any) -> np.ndarray:
        if isinstance(model, models.TransformerLM):
            x, law = torch.from_numpy(self.tokens.copy()), self.law()
        else:
            dtype = next(model.parameters()).dtype
            x, law = torch.from_numpy(self.inputs).to(dtype), self.teacher.log_probabilities(self.inputs)
        parts = [model(x[k : k + 32].expand(model.models, *[-1] * x.ndim)) for k in range(0, len(x), 32)]
        logs = torch.cat(parts, 1).double().log_softmax(-1).numpy()
        return np.array([_divergence(law, own) for own in logs])

    def _diagnose(self, model: Any, batch: tuple[torch.Tensor, torch.Tensor]) -> dict[str, np.ndarray]:
        """Mean cosine between inputs at the top of the stack, and ‖∂loss/∂x₀‖ over ‖∂loss/∂x_L‖; (models,) each."""
        inputs, targets = batch
        kept = recording.record(model, inputs, "stream", loss=lambda out: ensemble.cross_entropy(out, targets))
        gradient = probes.activation_gradient_norms(kept).frobenius.values
        with np.errstate(all="ignore"):
            return {
                "cosine": np.asarray(probes.across_input_cosine(kept).values)[:, -1],
                "ratio": np.asarray(gradient[:, 0]) / np.asarray(gradient[:, -1]),
            }


def _divergence(law: np.ndarray, guess: np.ndarray) -> float:
    """Mean of KL(p‖q), from logarithms."""
    with np.errstate(invalid="ignore"):
        return float((np.exp(law) * (law - guess)).sum(-1).mean())


def _sentence(lab: Lab, grid: Grid, **config: Any) -> Callable[[], dict[str, Any]]:
    """An arm of the transformer with the family's number of steps."""
    return lambda: lab.train(lab.transformer(grid, **config), grid, lab.p["family_steps"], ensemble.Adam((0.9, 0.98)))


def _stream(lab: Lab, grid: Grid, **config: Any) -> dict[str, Any]:
    """An arm, and the mean square of its stream behind each branch after training."""
    model = lab.transformer(grid, **config)
    found = lab.train(model, grid, lab.p["family_steps"], ensemble.Adam((0.9, 0.98)))
    kept = recording.record(
        model, torch.from_numpy(lab.tokens[:16].copy()).expand(model.models, -1, -1), "stream", "between"
    )
    points = ["stream/0"] + [
        f"{name}/{k + (name == 'stream')}" for k in range(config["depth"]) for name in ("between", "stream")
    ]
    squares = [kept.values[point].double().square().mean((1, 2, 3)) for point in points]
    return found | {"mean square": torch.stack(squares, -1).numpy().reshape(*found["kl"].shape, -1)}


def _spread(lab: Lab, grid: Grid, **config: Any) -> dict[str, Any]:
    """An arm, and the deviation over layers of ln of the norm of a layer's gradient, before and after training."""
    model = lab.transformer(grid, **config)
    inputs, targets = next(lab._tokens(grid, 1))

    def spread() -> np.ndarray:
        weights = [matrix.parameter for matrix in model.matrices if matrix.layer is not None]
        layers = [matrix.layer for matrix in model.matrices if matrix.layer is not None]
        unique = {id(weight): (weight, layer) for weight, layer in zip(weights, layers, strict=True)}
        found = torch.autograd.grad(
            ensemble.cross_entropy(model(inputs), targets).sum(), [w for w, _ in unique.values()]
        )
        squares = torch.zeros(config["depth"], model.models, dtype=torch.float64)
        for gradient, (_, layer) in zip(found, unique.values(), strict=True):
            squares[layer] += gradient.double().square().sum((1, 2))
        return squares.log().div(2).std(0, correction=0).numpy()

    before = spread()
    found = lab.train(model, grid, lab.p["family_steps"], ensemble.Adam((0.9, 0.98)))
    shape = found["kl"].shape
    return found | {"spread before": before.reshape(shape), "spread after": spread().reshape(shape)}


def _mixing(lab: Lab, grid: Grid, **config: Any) -> dict[str, Any]:
    """An arm, and the largest absolute row sum of the product of all mixing matrices after training."""
    model = lab.transformer(grid, **config)
    found = lab.train(model, grid, lab.p["family_steps"], ensemble.Adam((0.9, 0.98)))
    product = torch.eye(4, dtype=torch.float64)
    for branch in range(2 * config["depth"]):
        product = model.learnt[f"mix_{branch}"].detach().double().reshape(-1, 4, 4) @ product
    rows = product.sum(-1).abs().amax(-1)
    return found | {"row sum": rows.numpy().reshape(found["kl"].shape)}


def _quiet(lab: Lab, grid: Grid, **config: Any) -> dict[str, Any]:
    """An arm whose positions start as small as T-Fixup makes the tokens."""
    model = lab.transformer(grid, **config)
    model.weights["position"].data.mul_((9 * config["depth"]) ** -0.25)
    return lab.train(model, grid, lab.p["family_steps"], ensemble.Adam((0.9, 0.98)))


def base(placement: str) -> dict[str, int]:
    """The setting that only CompleteP and Depth-μP read: they are taken to be tuned at four layers."""
    return {"base_depth": 4} if "base_depth" in placements.get(placement).options else {}


def arms(lab: Lab) -> dict[str, Callable[[], dict[str, Any]]]:
    """Every arm by name, in the order in which they are run."""
    p = lab.p
    both: Grid = (p["rates"], [0, p["warmup"]])
    none: Grid = (p["rates"], [0])
    wide: Grid = (p["family_rates"], [0])
    one: Grid = ([p["family_rates"][0]], [p["warmup"]])
    usual, tiny = ensemble.Adam((0.9, 0.98)), ensemble.Adam(eps=1e-30)

    def deep(method: str) -> dict[str, Any]:
        return lab.train(lab.transformer(both, depth=p["layers"], placement=method), both, p["steps"], usual)

    def tall(method: str, grid: Grid, activation: str, optimiser: ensemble.Adam) -> dict[str, Any]:
        usual = activation == "relu" and optimiser != tiny  # else gradients leave the range of float32
        model = lab.perceptron(grid, torch.float32 if usual else torch.float64, placement=method, activation=activation)
        return lab.train(model, grid, p["mlp_steps"], optimiser)

    found: dict[str, Callable[[], dict[str, Any]]] = {}
    for method in METHODS:
        found[f"transformer, {method}"] = lambda method=method: deep(method)
    for method in METHODS:
        found[f"perceptron, relu, {method}"] = lambda method=method: tall(method, both, "relu", ensemble.Adam())
    found["perceptron, relu, post, tiny ε"] = lambda: tall("post", none, "relu", tiny)
    for method in METHODS[:2]:
        found[f"perceptron, tanh, {method}"] = lambda method=method: tall(method, none, "tanh", ensemble.Adam())
    for row in placements.PLACEMENTS:
        found[f"family, {row}"] = _sentence(lab, wide, depth=p["family_layers"], placement=row, **base(row))
    config = {"placement": "t_fixup_decoder", "depth": p["family_layers"]}
    found["quiet positions, t_fixup_decoder"] = lambda config=config: _quiet(lab, wide, **config)
    for depth in (p["short"], p["middle"]):
        for norm in ("layer_norm", "dyt"):
            found[f"{norm}, L = {depth}"] = _sentence(lab, wide, depth=depth, norm=norm)
    for method in ("mix_ln", "pre", "post"):
        config = {"placement": method, "depth": p["middle"]}
        found[f"spread, {method}"] = lambda config=config: _spread(lab, one, **config)
    config = {"placement": "hyper_connections", "depth": p["streams_layers"]}
    found["mixing"] = lambda config=config: _mixing(lab, wide, **config)
    for width in (2 * p["width"], 4 * p["width"]):
        for method in ("sandwich", "pre"):
            config = {"placement": method, "depth": p["middle"], "width": width}
            found[f"stream, {method}, d = {width}"] = lambda config=config: _stream(lab, one, **config)
    return found


def plain(value: Any) -> Any:
    """Arrays as nested lists of five significant digits, and null for what is not finite."""
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value]
    return float(f"{value:.5g}") if math.isfinite(value) else None


def measure(sizes: Sizes, partial: Path) -> dict[str, Any]:
    """Run all arms. Each is written to ``partial`` when it ends, and taken from there by a later call of the same sizes."""
    torch.set_num_threads(1)
    lab = Lab(sizes)
    done: dict[str, Any] = {}
    if partial.exists():
        kept = json.loads(partial.read_text("utf-8"))
        done = kept["arms"] if kept["parameters"] == sizes else {}
    torch.set_flush_denormal(True)  # post-norm's gradients get so small that arithmetic takes a hundred times longer
    try:
        for name, arm in arms(lab).items():
            if name not in done:
                with sdpa_kernel(SDPBackend.MATH):  # for so short sequences twice as fast as the usual one
                    done[name] = {key: plain(value) for key, value in arm().items()}
                partial.write_text(json.dumps({"parameters": sizes, "arms": done}, ensure_ascii=False), "utf-8")
                print(name, flush=True)
    finally:
        torch.set_flush_denormal(False)
    partial.unlink()
    return {
        "ignorance": {name: plain(value) for name, value in lab.ignorance().items()},
        "arms": {name: done[name] for name in arms(lab)},
    }
