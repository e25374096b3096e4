"""The table of placements: where the norm stands in a residual block.

A placement is one row. The models of the chapters, the notation page, the zero-branch control and the
Jacobian test are all made from the table, so that the equation a reader sees is the code that runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

__all__ = ["PLACEMENTS", "Placement", "get"]

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Placement:
    """Where the norm stands in a residual block.

    Attributes:
        name: the name used everywhere in the book.
        title: the name in prose.
        equation: the block, in LaTeX.
        combine: ``combine(x, branch, norm)`` is the block's output; shapes ``(..., width)`` throughout.
        final_norm: whether the stack ends with one more norm, before the head.
        source: who introduced it, with a citation key of the book's bibliography.
    """

    name: str
    title: str
    equation: str
    combine: Callable[[Tensor, Map, Map], Tensor]
    final_norm: bool
    source: str


PLACEMENTS: dict[str, Placement] = {
    row.name: row
    for row in (
        Placement(
            name="residual",
            title="residual, no norm",
            equation=r"x_{l+1} = x_l + F_l(x_l)",
            combine=lambda x, branch, norm: x + branch(x),
            final_norm=False,
            source="he2016deep",
        ),
        Placement(
            name="pre",
            title="pre-norm",
            equation=r"x_{l+1} = x_l + F_l(\mathrm{N}(x_l))",
            combine=lambda x, branch, norm: x + branch(norm(x)),
            final_norm=True,
            source="xiong2020layer",
        ),
        Placement(
            name="post",
            title="post-norm",
            equation=r"x_{l+1} = \mathrm{N}(x_l + F_l(x_l))",
            combine=lambda x, branch, norm: norm(x + branch(x)),
            final_norm=False,
            source="vaswani2017attention",
        ),
    )
}


def get(name: str) -> Placement:
    """The row of that name.

    Raises:
        ValueError: there is none; the message lists those that there are.
    """
    if name not in PLACEMENTS:
        raise ValueError(f"placement = {name!r} is unknown; use one of {', '.join(PLACEMENTS)}")
    return PLACEMENTS[name]
