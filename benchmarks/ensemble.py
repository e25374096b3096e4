"""Time of training many small models, on one thread: ``python benchmarks/ensemble.py --json FILE [--jax PYTHON]``.

Work ``grid``: 90 residual perceptrons (placements residual, pre and post; three learning rates; depths 2, 4, 8, 16 and
32; branch multipliers 1 and 1/√depth), Adam, float64; one step of all 90. Work ``transformer``: eight seeds. Work
``depth``: one pre-norm model of 100 to 1,000 blocks. Every method starts from the same weights and must reach the same
losses after five steps. Times are CPU milliseconds per step, the least of several rounds in which the methods take
turns. Work ``groups``: the grid's three placements by one worker and by two, in wall milliseconds. JAX runs in a process
of its own, under the interpreter that is named; it is no dependency of the book.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from norms import processor
from torch import Tensor, nn
from torch.nn import functional

from resnorm_lib import ensemble, models

PLACEMENTS, DEPTHS, RATES = ("residual", "pre", "post"), (32, 16, 8, 4, 2), (1e-3, 3e-3, 1e-2)
CELLS = [(d, m, r) for d in DEPTHS for m in (1.0, d**-0.5) for r in RATES]  # of one placement, deepest first
SIZES = ((16, 32), (32, 64))  # width, batch
METHODS = ("eager", "eager_fused", "vmap", "compile", "jax", "ensemble")
INPUTS, CLASSES = 8, 4
Method = Callable[[int], tuple[float, list[float]]]  # number of steps to (milliseconds for each, last losses)


class Plain(nn.Module):
    """One model as anyone would write it, with the weights of model ``which`` of a batch."""

    def __init__(self, batched: models.ResidualMLP, which: int) -> None:
        super().__init__()
        config = batched.configs[which]
        self.placement, self.multiplier, self.depth = config.placement, config.multiplier, config.depth
        own = {name: p.detach()[which].clone() for name, p in batched.named_parameters() if which < len(p)}
        take = lambda name: nn.Parameter(own[name])
        self.stem, self.head = take("weights.stem"), take("weights.head")
        self.inner = nn.ParameterList(take(f"weights.feed_forward_in_{k}") for k in range(self.depth))
        self.outer = nn.ParameterList(take(f"weights.feed_forward_out_{k}") for k in range(self.depth))
        slots = [] if self.placement == "residual" else list(range(self.depth + (self.placement == "pre")))
        self.norms = nn.ModuleList(nn.LayerNorm(config.width, dtype=self.stem.dtype) for _ in slots)

    def forward(self, x: Tensor) -> Tensor:
        x = x @ self.stem
        for k in range(self.depth):
            z = self.norms[k](x) if self.placement == "pre" else x
            x = x + self.multiplier * (torch.tanh(z @ self.inner[k]) @ self.outer[k])
            if self.placement == "post":
                x = self.norms[k](x)
        return (self.norms[-1](x) if self.placement == "pre" else x) @ self.head


class Mapped(nn.Module):
    """`Plain` models of one depth through ``torch.vmap``; their stacked weights follow the rule of the ensemble."""

    def __init__(self, singles: list[Plain]) -> None:
        super().__init__()
        stacked, _ = torch.func.stack_module_state(singles)
        self.names = list(stacked)
        self.values = nn.ParameterList(nn.Parameter(value.detach()) for value in stacked.values())
        self.singles = [singles[0]]  # in a list: not a part of this module
        self.multipliers = torch.tensor([single.multiplier for single in singles], dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        def one(own: dict[str, Tensor], multiplier: Tensor, x: Tensor) -> Tensor:
            self.singles[0].multiplier = multiplier
            return torch.func.functional_call(self.singles[0], own, (x,))

        return torch.vmap(one)(dict(zip(self.names, self.values, strict=True)), self.multipliers, x)


def batched(placement: str, width: int) -> models.ResidualMLP:
    """The thirty models of one placement, from fixed seeds."""
    sizes = {"inputs": INPUTS, "width": width, "hidden": width, "outputs": CLASSES, "activation": "tanh"}
    configs = [models.MLPConfig(**sizes, depth=d, multiplier=m, placement=placement) for d, m, _ in CELLS]
    return models.ResidualMLP(configs, [torch.Generator().manual_seed(k) for k in range(len(CELLS))], torch.float64)


def data(batch: int) -> tuple[Tensor, Tensor]:
    """One batch, the same for all models and steps."""
    source = torch.Generator().manual_seed(1234)
    x = torch.randn(batch, INPUTS, generator=source, dtype=torch.float64).expand(len(CELLS), -1, -1).contiguous()
    return x, torch.randint(CLASSES, (batch,), generator=source).expand(len(CELLS), -1).contiguous()


def trained(make: Callable[[], list[tuple[nn.Module, list[int]]]], x: Tensor, y: Tensor) -> Method:
    """`ensemble.train` on modules that hold the cells of those numbers; the first step, with its set-up, is not timed."""

    def method(steps: int) -> tuple[float, list[float]]:
        total, last = 0.0, []
        for module, cells in make():
            seen: list[float] = []
            history = ensemble.train(
                module,
                itertools.repeat((x[cells], y[cells]), steps + 1),
                ensemble.cross_entropy,
                optimiser=ensemble.Adam(),
                learning_rates=[CELLS[cell][2] for cell in cells],
                progress=lambda _, seen=seen: seen.append(time.process_time()),
            )
            total += (seen[-1] - seen[0]) / steps
            last += history.losses[steps - 1].tolist()
        return 1e3 * total, last

    return method


def eager(groups: list[models.ResidualMLP], x: Tensor, y: Tensor, fused: bool) -> Method:
    """One model after another, each with its own ``torch.optim.Adam``."""

    def method(steps: int) -> tuple[float, list[float]]:
        total, last = 0.0, []
        for group in groups:
            for which, (_, _, rate) in enumerate(CELLS):
                model = Plain(group, which)
                optimiser = torch.optim.Adam(model.parameters(), lr=rate, fused=fused)
                for step in range(steps + 1):
                    if step == 1:
                        start = time.process_time()
                    optimiser.zero_grad()
                    loss = functional.cross_entropy(model(x[which]), y[which])
                    loss.backward()
                    optimiser.step()
                    if step == steps - 1:
                        last.append(loss.item())
                total += (time.process_time() - start) / steps
        return 1e3 * total, last

    return method


class Jax:
    """The process that runs ``ensemble_jax.py``; a method like the others."""

    def __init__(self, interpreter: str, groups: list[models.ResidualMLP], x: Tensor, y: Tensor) -> None:
        arrays: dict[str, Any] = {"placements": PLACEMENTS, "x": x.numpy(), "y": y.numpy()}
        arrays |= {"rates": [r for _, _, r in CELLS], "multiplier": np.array([m for _, m, _ in CELLS])[:, None, None]}
        renamed = {"weights.feed_forward_in_": "inner_", "weights.feed_forward_out_": "outer_", "weights.": ""}
        renamed |= {"gains.": "gain_", "biases.": "bias_"}
        for group in groups:
            arrays[f"{group.placement.name}/counts"] = group.alive
            for name, value in group.named_parameters():
                for old, new in renamed.items():
                    name = name.replace(old, new)
                if name.startswith(("gain_", "bias_")):
                    name = name.removesuffix("_0")  # one norm in each block
                arrays[f"{group.placement.name}/{name}"] = value.detach().numpy()
        self.scratch = tempfile.TemporaryDirectory()
        weights = Path(self.scratch.name) / "start.npz"
        np.savez(weights, **arrays)
        script = Path(__file__).with_name("ensemble_jax.py")
        self.process = subprocess.Popen(
            [interpreter, str(script), str(weights)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.head = self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the JAX process ended early; what it wrote stands above")
        return dict(json.loads(line))

    def __call__(self, steps: int) -> tuple[float, list[float]]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        answer = self._answer()
        return answer["ms"], [loss for name in PLACEMENTS for loss in answer["losses"][name]]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self.scratch.cleanup()


def take_turns(methods: dict[str, Method], rounds: int, steps: int) -> dict[str, float]:
    """Least milliseconds per step of each method; first they must agree on the losses after five steps."""
    reference: Tensor | None = None
    for name, method in methods.items():
        losses = torch.tensor(method(5)[1], dtype=torch.float64)
        reference = losses if reference is None else reference
        gap = (losses - reference).abs().max().item()
        if not gap < 1e-8:
            raise SystemExit(f"{name} does other work: its losses differ by {gap:.1e} from those of the first method")
    best = dict.fromkeys(methods, float("inf"))
    for _, (name, method) in itertools.product(range(rounds), methods.items()):
        best[name] = min(best[name], method(steps)[0])
    return best


def grid(width: int, batch: int, wanted: list[str], jax: str | None, rounds: int) -> list[dict[str, Any]]:
    """One row for each method."""
    x, y = data(batch)
    groups, everything = [batched(placement, width) for placement in PLACEMENTS], list(range(len(CELLS)))
    extra: dict[str, dict[str, float | str]] = {}

    def by_depth() -> list[tuple[nn.Module, list[int]]]:
        pieces = []
        for group, depth in itertools.product(groups, DEPTHS):
            cells = [k for k, (own, _, _) in enumerate(CELLS) if own == depth]
            pieces += [(Mapped([Plain(group, k) for k in cells]), cells)]
        return pieces

    methods: dict[str, Method] = {
        "eager": eager(groups, x, y, fused=False),
        "eager_fused": eager(groups, x, y, fused=True),
        "ensemble": trained(lambda: [(batched(p, width), everything) for p in PLACEMENTS], x, y),
        "vmap": trained(by_depth, x, y),
    }
    if "compile" in wanted:
        start = time.perf_counter()
        fresh = [batched(placement, width) for placement in PLACEMENTS]
        compiled = [torch.compile(module, dynamic=False) for module in fresh]

        def restart() -> list[tuple[nn.Module, list[int]]]:
            for module, group in zip(fresh, groups, strict=True):
                module.load_state_dict(group.state_dict())
            return [(module, everything) for module in compiled]

        methods["compile"] = trained(restart, x, y)
        methods["compile"](1)
        extra["compile"] = {"first_call_s": round(time.perf_counter() - start, 1)}
    if jax is not None and "jax" in wanted:
        methods["jax"] = peer = Jax(jax, groups, x, y)
        extra["jax"] = {"first_call_s": round(peer.head["first_call_s"], 1), "version": peer.head["jax"]}
    methods = {name: method for name, method in methods.items() if name in wanted}
    best = take_turns(methods, rounds, 10)
    if "jax" in methods:
        peer.close()
    flops = len(PLACEMENTS) * sum(6 * batch * width * (2 * d * width + INPUTS + CLASSES) for d, _, _ in CELLS)
    return [
        {"work": "grid", "dtype": "float64", "batch": batch, "width": width, "method": name}
        | {"ms_per_step": round(ms, 2), "gflops": round(flops / ms / 1e6, 2)}
        | extra.get(name, {})
        for name, ms in best.items()
    ]


def independent(width: int, batch: int, rounds: int) -> list[dict[str, Any]]:
    """The three placements of the grid, by one worker and by two: least wall milliseconds per step of all 90 models."""
    x, y = data(batch)
    best, steps, rates = {1: float("inf"), 2: float("inf")}, 10, [rate for _, _, rate in CELLS]
    for _, workers in itertools.product(range(rounds), best):
        runs = [
            ensemble.Run(
                batched(name, width), itertools.repeat((x, y), steps), ensemble.cross_entropy, ensemble.Adam(), rates
            )
            for name in PLACEMENTS
        ]
        start = time.perf_counter()
        ensemble.train_groups(runs, workers)
        best[workers] = min(best[workers], 1e3 * (time.perf_counter() - start) / steps)
    base = {"work": "groups", "dtype": "float64", "batch": batch, "width": width, "method": "ensemble"}
    return [base | {"workers": workers, "wall_ms_per_step": round(ms, 2)} for workers, ms in best.items()]


def transformer(width: int, sequences: int, rounds: int) -> list[dict[str, Any]]:
    """Eight seeds of a pre-norm transformer of six layers: one after another, and at once."""
    config = models.TransformerConfig(vocabulary=16, length=16, width=width, hidden=2 * width, depth=6, heads=2)
    tokens = torch.randint(16, (8, sequences, 16), generator=torch.Generator().manual_seed(0))
    build = lambda seeds: models.TransformerLM(config, [torch.Generator().manual_seed(s) for s in seeds])

    def together(steps: int) -> tuple[float, list[float]]:
        seen: list[float] = []
        history = ensemble.train(
            build(range(8)),
            itertools.repeat((tokens, tokens), steps + 1),
            ensemble.cross_entropy,
            optimiser=ensemble.Adam(),
            learning_rates=[1e-3] * 8,
            progress=lambda _: seen.append(time.process_time()),
        )
        return 1e3 * (seen[-1] - seen[0]) / steps, history.losses[0].double().round(decimals=5).tolist()

    def one_by_one(steps: int) -> tuple[float, list[float]]:
        total, losses = 0.0, []
        for seed in range(8):
            model = build([seed])
            optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
            for step in range(steps + 1):
                if step == 1:
                    start = time.process_time()
                optimiser.zero_grad()
                loss = functional.cross_entropy(model(tokens[seed : seed + 1]).flatten(0, -2), tokens[seed].flatten())
                loss.backward()
                optimiser.step()
                losses += [round(loss.item(), 5)] if step == 0 else []
            total += (time.process_time() - start) / steps
        return 1e3 * total, losses

    found = {"eager_fused": one_by_one, "ensemble": together}
    for method in found.values():
        method(1)
    best = dict.fromkeys(found, float("inf"))
    for _, (name, method) in itertools.product(range(rounds), found.items()):
        best[name] = min(best[name], method(5)[0])
    base = {"work": "transformer", "dtype": "float32", "batch": sequences, "width": width}
    return [base | {"method": name, "ms_per_step": round(ms, 2)} for name, ms in best.items()]


def peak_mib() -> float:
    """The most memory that this process has held (Linux; ``getrusage`` would count its parent's)."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def one_depth(depth: int) -> tuple[float, float]:
    """Milliseconds per step and MiB above those of a shallow model, in a process of its own."""
    torch.set_num_threads(1)

    def run(depth: int, steps: int) -> float:
        sizes = {"inputs": INPUTS, "width": 32, "hidden": 32, "outputs": CLASSES, "activation": "tanh"}
        config = models.MLPConfig(**sizes, depth=depth, multiplier=depth**-0.5)
        seen: list[float] = []
        ensemble.train(
            models.ResidualMLP([config], [torch.Generator().manual_seed(0)], torch.float64),
            itertools.repeat(tuple(tensor[:1] for tensor in data(64)), steps + 1),
            ensemble.cross_entropy,
            optimiser=ensemble.Adam(),
            learning_rates=[1e-4],
            progress=lambda _: seen.append(time.process_time()),
        )
        return 1e3 * min(late - early for early, late in itertools.pairwise(seen))

    run(4, 3)
    before = peak_mib()
    return run(depth, 8), peak_mib() - before


def depth_rows() -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Rows for 100 to 1,000 blocks, and the exponents of time and memory in depth (least squares in logarithms)."""
    depths = (100, 200, 400, 700, 1000)
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        found = [pool.apply(one_depth, (depth,)) for depth in depths]
    base = {"work": "depth", "dtype": "float64", "batch": 64, "width": 32, "method": "ensemble"}
    rows = [
        base | {"depth": d, "ms_per_step": round(t, 1), "mib": round(m)}
        for d, (t, m) in zip(depths, found, strict=True)
    ]
    slope = lambda values: round(float(np.polyfit(np.log(depths), np.log(values), 1)[0]), 3)
    times, memories = zip(*found, strict=True)
    return rows, {"time": slope(times), "memory": slope(memories)}


def peak() -> float:
    """Billions of float64 operations per second in one large matrix product."""
    a, best = torch.randn(1024, 1024, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), float("inf")
    for _ in range(8):
        start = time.process_time()
        a @ a
        best = min(best, time.process_time() - start)
    return 2 * 1024**3 / best / 1e9


def has_jax(interpreter: str | None) -> bool:
    """Whether JAX rows can be made; says so where not."""
    if interpreter is None:
        print("no row for jax: name an interpreter that has it with --jax")
        return False
    try:
        subprocess.run([interpreter, "-c", "import jax"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no row for jax: {interpreter} cannot import it ({error})")
        return False
    return True


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--jax", metavar="PYTHON", help="interpreter that can import jax")
    parser.add_argument("--skip", nargs="*", choices=METHODS, default=[], metavar="METHOD", help="methods to leave out")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each method (default 7)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    skip = set(options.skip) | (set() if "jax" in options.skip or has_jax(options.jax) else {"jax"})
    wanted, rows, most = [name for name in METHODS if name not in skip], [], peak()
    for width, batch in SIZES:
        found = grid(width, batch, wanted, options.jax, options.rounds)
        for row in found:
            row["share_of_peak"] = round(row.pop("gflops") / most, 3)
            print(row, flush=True)
        rows += found
    for width, batch in SIZES:
        found = independent(width, batch, options.rounds)
        print(*found, sep="\n", flush=True)
        rows += found
    for width, sequences in ((16, 4), (32, 16), (64, 64)):
        found = transformer(width, sequences, options.rounds)
        print(*found, sep="\n", flush=True)
        rows += found
    found, exponents = depth_rows()
    print(*found, f"exponents in depth: {exponents}", sep="\n", flush=True)
    machine = f"{processor()}, one thread of {os.cpu_count()} cores, torch {torch.__version__}"
    table = {"machine": machine, "peak_gflops": round(most, 1), "exponents": exponents, "rows": rows + found}
    options.json.write_text(json.dumps(table, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
