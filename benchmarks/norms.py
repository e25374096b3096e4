"""Time of LayerNorm and RMSNorm alone, on one thread: ``python benchmarks/norms.py --json FILE``.

Each figure is the smallest of several repetitions, in microseconds per call on 1,024 tokens in float32.
The chapter on the projector shows the file ``resnorm_lib/data/norm_speed.json``, made by this script.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

TOKENS, WIDTHS, REPETITIONS = 1024, (64, 256, 1024), 7


def layer_norm_by_hand(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt()


def rms_norm_by_hand(x: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()


METHODS: dict[str, Callable[[Tensor], Tensor]] = {
    "layer_norm, torch's kernel": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "rms_norm, torch's kernel": lambda x: functional.rms_norm(x, x.shape[-1:], eps=1e-5),
    "layer_norm, by hand": layer_norm_by_hand,
    "rms_norm, by hand": rms_norm_by_hand,
}


def microseconds(call: Callable[[], object]) -> float:
    """Smallest time of one call over the repetitions."""
    call()
    best = float("inf")
    for _ in range(REPETITIONS):
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < 0.1:
            call()
            count += 1
        best = min(best, (time.perf_counter() - start) / count)
    return best * 1e6


def processor() -> str:
    """The processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    target = parser.parse_args().json
    torch.set_num_threads(1)
    rows = []
    for width in WIDTHS:
        x = torch.randn(TOKENS, width, generator=torch.Generator().manual_seed(0))
        trained = x.clone().requires_grad_()
        for method, norm in METHODS.items():
            both = lambda: torch.autograd.grad(norm(trained).sum(), trained)  # noqa: B023, E731
            row = {"method": method, "width": width, "forward_us": round(microseconds(lambda: norm(x)), 1)}  # noqa: B023
            rows.append(row | {"forward_backward_us": round(microseconds(both), 1)})
            print(rows[-1])
    machine = f"{processor()}, one thread of {os.cpu_count()} cores, torch {torch.__version__}"
    target.write_text(json.dumps({"machine": machine, "tokens": TOKENS, "dtype": "float32", "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
