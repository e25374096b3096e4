"""The grid of ``benchmarks/ensemble.py`` in JAX; that script starts this one where an interpreter with JAX is named.

One jitted step for all three placements: a leading model axis, and a scan over each run of blocks that the same
models have. Reads the weights and data it is given, and for each line on its input does that many steps from the
start and answers with one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np

Tree = dict[str, Any]
BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


def norm(x: Any, gain: Any, bias: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * gain + bias


def logits(placement: str, weights: Tree, multiplier: Any, x: Any) -> Any:
    def block(x: Any, w: Tree) -> tuple[Any, None]:
        z = norm(x, w["gain"], w["bias"]) if placement == "pre" else x
        x = x + multiplier[: len(x)] * (jnp.tanh(z @ w["inner"]) @ w["outer"])
        return (norm(x, w["gain"], w["bias"]) if placement == "post" else x), None

    x, finished = x @ weights["stem"], []
    for run in weights["runs"]:  # blocks that the same models have
        count = run["inner"].shape[1]
        finished.append(x[count:])
        x, _ = jax.lax.scan(block, x[:count], run)
    x = jnp.concatenate([x, *reversed(finished)])
    if placement == "pre":
        x = norm(x, weights["gain"], weights["bias"])
    return x @ weights["head"]


def losses(placement: str, weights: Tree, multiplier: Any, x: Any, y: Any) -> Any:
    log_p = jax.nn.log_softmax(logits(placement, weights, multiplier, x))
    return -jnp.take_along_axis(log_p, y[..., None], -1)[..., 0].mean(-1)


def read(data: Any, placement: str) -> Tree:
    """The weights as the scans want them."""
    counts = data[f"{placement}/counts"]
    get = lambda name: jnp.asarray(data[f"{placement}/{name}"])
    weights: Tree = {"stem": get("stem"), "head": get("head"), "runs": []}
    if placement == "pre":
        weights |= {"gain": get("gain_final"), "bias": get("bias_final")}
    for count in sorted(set(counts.tolist()), reverse=True):
        layers = np.flatnonzero(counts == count)
        names = ["inner", "outer"] + ([] if placement == "residual" else ["gain", "bias"])
        weights["runs"].append({name: jnp.stack([get(f"{name}_{k}") for k in layers]) for name in names})
    return weights


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    data = np.load(sys.argv[1])
    placements = [str(name) for name in data["placements"]]
    x, y, rates = jnp.asarray(data["x"]), jnp.asarray(data["y"]), jnp.asarray(data["rates"])
    multiplier = jnp.asarray(data["multiplier"])

    def total(weights: Tree) -> Any:
        each = {p: losses(p, weights[p], multiplier, x, y) for p in placements}
        return sum(value.sum() for value in each.values()), each

    def rate(w: Any, stacked: bool) -> Any:
        """Each model's own: the model axis is the first, or the second behind a scan's."""
        count = w.shape[stacked]
        return rates[:count].reshape([1] * stacked + [count] + [1] * (w.ndim - 1 - stacked))

    @jax.jit
    def step(weights: Tree, mean: Tree, square: Tree, t: Any) -> Any:
        gradient, each = jax.grad(total, has_aux=True)(weights)
        mean = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, mean, gradient)
        square = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, square, gradient)
        c1, c2 = 1 - BETA1**t, 1 - BETA2**t

        def change(path: Any, w: Any, m: Any, v: Any) -> Any:
            stacked = any(getattr(key, "key", None) == "runs" for key in path)
            return w - rate(w, stacked) * (m / c1) / (jnp.sqrt(v / c2) + EPS)

        return jax.tree_util.tree_map_with_path(change, weights, mean, square), mean, square, each

    start = {p: read(data, p) for p in placements}
    zeros = jax.tree.map(jnp.zeros_like, start)
    begin = time.perf_counter()
    jax.block_until_ready(step(start, zeros, zeros, 1.0))
    first = time.perf_counter() - begin
    print(json.dumps({"jax": jax.__version__, "first_call_s": first}), flush=True)
    for line in sys.stdin:
        state, each = (start, zeros, zeros), None
        begin = time.process_time()
        for t in range(int(line)):
            *state, each = step(*state, t + 1.0)
        jax.block_until_ready((state, each))
        spent = (time.process_time() - begin) / int(line)
        print(json.dumps({"ms": 1e3 * spent, "losses": {p: value.tolist() for p, value in each.items()}}), flush=True)


if __name__ == "__main__":
    main()
