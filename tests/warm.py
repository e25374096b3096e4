"""One kernel for many quick runs of a chapter, each with a fresh namespace: starting and importing is much of such a run.

papermill injects the parameters, and the cells run in order. Only imported modules, and what the process keeps, pass from
one run to the next; `Warm.state` is a digest of all in the process that could reach a number or a picture, and must not
change. That a warm run records the same bits as a fresh process is a test of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

# TORCHINDUCTOR_CACHE_DIR is set by torch.optim when it is first imported: where its compiler, unused here, keeps files
# generators, dtype, threads, switches, styles, folder, environment: as text, so that a failure shows which has changed
STATE = """
def _state():
    import hashlib, os, random, sys
    import matplotlib, numpy, torch
    from matplotlib import pyplot
    digest = lambda value: hashlib.sha256(value if isinstance(value, bytes) else repr(value).encode()).hexdigest()[:12]
    return {
        "torch generator": digest(torch.random.get_rng_state().numpy().tobytes()),
        "numpy generator": digest([x if isinstance(x, (str, int, float)) else x.tobytes() for x in numpy.random.get_state()]),
        "random": digest(random.getstate()),
        "torch": (str(torch.get_default_dtype()), torch.get_num_threads(), torch.is_grad_enabled(),
                  torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision(), torch.is_anomaly_enabled()),
        "numpy": str(numpy.geterr()) + str(numpy.get_printoptions()),
        "figures": (digest(sorted(map(str, matplotlib.rcParams.items()))), pyplot.get_fignums()),
        "process": (os.getcwd(), digest(sorted(item for item in os.environ.items() if item[0] != "TORCHINDUCTOR_CACHE_DIR")), sys.path[:3], sys.getrecursionlimit()),
    }
"""


class Warm:
    """The kernel; made by `warm`."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def _run(self, notebook: Any, enough: Callable[[Any], bool] = lambda cell: False) -> None:
        self._client.nb = notebook
        self._client.reset_execution_trackers()
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type == "code" and cell.source.strip():
                self._client.execute_cell(cell, index)
                if enough(cell):
                    return

    def state(self) -> str:
        """What a run could leave to the next, one line each."""
        notebook = new_notebook(cells=[new_code_cell(STATE + "print('\\n'.join(map(str, _state().items())))")])
        self._run(notebook)
        self._run(new_notebook(cells=[new_code_cell("%reset -f")]))
        return str(notebook.cells[0].outputs[0]["text"])

    def set_up(self, path: Path) -> None:
        """Run the cells before the parameters: they import, and set the number of threads."""
        cells = load_notebook_node(str(path)).cells
        tagged = next(k for k, cell in enumerate(cells) if "parameters" in cell.metadata.tags)
        self._run(new_notebook(cells=[*cells[:tagged], new_code_cell("%reset -f")]))

    def run(self, path: Path, enough: Callable[[Any], bool] = lambda cell: False, **values: Any) -> Any:
        """The executed notebook of a run with these parameters, which leaves no name behind.

        It ends after the first cell that is ``enough``.
        """
        notebook = load_notebook_node(str(path))
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        notebook = parameterize_notebook(notebook, values, kernel_name="python3", language="python")
        try:
            self._run(notebook, enough)
        finally:
            self._run(new_notebook(cells=[new_code_cell("%reset -f")]))
        return notebook


@contextlib.contextmanager
def warm(folder: Path) -> Iterator[Warm]:
    """A kernel that runs in ``folder``."""
    client: Any = NotebookClient(new_notebook(), kernel_name="python3", timeout=600, shutdown_kernel="immediate")
    with client.setup_kernel(cwd=str(folder)):
        yield Warm(client)
