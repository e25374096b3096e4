"""Sphinx extension: the directive ``{library-api}``, the public names of the library with their signatures and docstrings.

Modules come in the order of the floors. Autodoc was tried first: it spells out every type alias (one signature had 1,500
characters) and takes mathematics in docstrings for markup. So the Python domain of Sphinx, whose entries the search and
the chapters' links know, is given what docstrings.py writes: the signatures as the source has them, and plain docstrings.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Mapping
from types import FunctionType, ModuleType
from typing import Any

from docstrings import PACKAGE, Names, members
from docutils import nodes
from docutils.parsers.rst import Parser
from docutils.utils import new_document
from sphinx.application import Sphinx
from sphinx.domains import Domain
from sphinx.util.docutils import SphinxDirective


def assignments(module: ModuleType) -> dict[str, tuple[str, str]]:
    """Each name that a module assigns: the value as written, and the string below it, which is its docstring."""
    body = ast.parse(inspect.getsource(module)).body
    found = {}
    for node, below in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            text = below.value if isinstance(below, ast.Expr) else None
            told = text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else ""
            name = node.targets[0] if isinstance(node, ast.Assign) else node.target
            found[ast.unparse(name)] = ast.unparse(node.value), told
    return found


def block(directive: str, head: str, body: list[str]) -> list[str]:
    """A directive of the Python domain."""
    return ["", f".. py:{directive}:: {head}", *("   " + line for line in body), ""]


def entry(names: Names, name: str, value: Any, told: tuple[str, str]) -> list[str]:
    """A name and all that is said of it; ``told`` is what `assignments` found."""
    if isinstance(value, FunctionType):
        return block("function", name + names.signature(value), names.docstring(value))
    if not inspect.isclass(value):
        text = ", ".join(map(str, value)) if isinstance(value, Mapping | tuple) else told[0]
        return block("data", name, [*names.docstring(told[1]), f"``{text}``"])
    bases = [base.__name__ for base in value.__bases__ if base.__name__ in names.classes]
    lines = ["", *(f"A :py:obj:`{base} <{names.find(base)}>`, with all that it has." for base in bases)]
    lines += names.docstring(value, name) + names.docstring(vars(value).get("__init__"), name)
    for member, method in members(value).items():
        if isinstance(method, property):
            kind = names.type(inspect.signature(method.fget).return_annotation)
            lines += block("property", member, [f":type: {kind}", *names.docstring(method, name)])
        else:
            head = member + names.signature(getattr(value, member))
            lines += block("method", head, names.docstring(method, name))
    if issubclass(value, BaseException):
        return block("exception", name, lines)
    return block("class", name + names.signature(value), lines)


class LibraryApi(SphinxDirective):
    """``{library-api}``: a section for each module; the page is read again when a module changes."""

    def run(self) -> list[nodes.Node]:
        names = Names()
        self.env.note_dependency(str(importlib.import_module(PACKAGE).__file__))
        lines = []
        for full, module in names.modules.items():
            self.env.note_dependency(str(module.__file__))
            names.current, told = full, assignments(module)
            lines += [full, "=" * len(full), "", f".. py:currentmodule:: {full}", *names.docstring(module)]
            lines += [" · ".join(f":py:obj:`{name} <{names.find(name)}>`" for name in module.__all__), ""]
            for name in module.__all__:
                target = names.find(name)
                if target == f"{full}.{name}":
                    lines += entry(names, name, getattr(module, name), told.get(name, ("", "")))
                else:
                    lines += ["", f"``{name}`` is :py:obj:`{target}`.", ""]
        page = new_document(self.state.document["source"], self.state.document.settings)
        page.reporter = self.state.document.reporter
        Parser().parse("\n".join(lines), page)
        for section in page.findall(nodes.section):
            self.state.document.note_explicit_target(section, section)
        return page.children


def foreign(app: Sphinx, domain: Domain, node: nodes.Element) -> bool | None:
    """A type in a signature that is not of this library is no link, and no warning either."""
    typed = node["refdomain"] == "py" and node["reftype"] != "obj"
    return True if typed and not node["reftarget"].startswith(f"{PACKAGE}.") else None


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("library-api", LibraryApi)
    app.connect("warn-missing-reference", foreign)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
