"""Make a kernel fit for the published numbers: one thread, and no package replaced under a running kernel."""

from __future__ import annotations

from importlib import metadata

import matplotlib
import numpy
import torch

__all__ = ["EnvironmentMismatch", "prepare"]


class EnvironmentMismatch(ImportError):
    """A package was replaced on disk after this kernel had loaded it."""


def prepare(threads: int = 1) -> None:
    """Check that the loaded packages are those on disk, and fix the number of torch threads.

    Sums are taken in another order with another number of threads, so the published numbers
    come from one. Introduced in ``ch_layernorm_projector``.

    Args:
        threads: number of threads for torch, at least 1.

    Raises:
        ValueError: ``threads`` is below 1.
        EnvironmentMismatch: numpy, torch or matplotlib was upgraded after it was imported.
    """
    if threads < 1:
        raise ValueError(f"threads = {threads} is not allowed: give at least 1")
    for package in (numpy, torch, matplotlib):
        loaded, installed = str(package.__version__), metadata.version(package.__name__)
        # torch's CUDA build from the package index calls itself 2.9.0+cu128 and is installed as 2.9.0
        if loaded.split("+")[0] != installed.split("+")[0]:
            raise EnvironmentMismatch(
                f"{package.__name__} {loaded} is loaded but {installed} is installed: "
                "restart the kernel and run the notebook from the top"
            )
    torch.set_num_threads(threads)
