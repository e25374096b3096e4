"""Sphinx extension: the directive ``{library-api}``, the public names of the library with their signatures and docstrings.

Modules come in the order of the floors. Autodoc was tried first: it spells out every type alias (one signature had 1,500
characters) and takes mathematics in docstrings for markup. So the Python domain of Sphinx is given the signatures as the
source has them, and docstrings in which single backticks are links and nothing else but code is markup.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Parser
from docutils.utils import new_document
from sphinx.application import Sphinx
from sphinx.domains import Domain
from sphinx.util.docutils import SphinxDirective

PACKAGE = "resnorm_lib"
SECTIONS = {"Args": "Arguments", "Attributes": "Attributes", "Returns": "Returns", "Raises": "Raises"}
METHODS = FunctionType, classmethod, staticmethod, property


class Source(str):
    """Text that a signature shows as it is, without quotation marks."""

    __repr__ = str.__str__


def modules() -> dict[str, ModuleType]:
    """Every module by its full name, in the order in which the package's own docstring lists them."""
    package = importlib.import_module(PACKAGE)
    listed = dict.fromkeys(re.findall(r"``(\w+)``", package.__doc__ or ""))
    return {f"{PACKAGE}.{name}": importlib.import_module(f"{PACKAGE}.{name}") for name in listed}


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


def members(owner: type) -> dict[str, Any]:
    """The public methods and properties that a class defines itself, its call among them."""
    fields = {field.name for field in dataclasses.fields(owner)} if dataclasses.is_dataclass(owner) else set()
    public = {name: value for name, value in vars(owner).items() if name[0] != "_" or name == "__call__"}
    return {name: value for name, value in public.items() if isinstance(value, METHODS) and name not in fields}


class Writer:
    """Writes about the library in reStructuredText; ``links`` has the full name behind each way to name something."""

    def __init__(self) -> None:
        self.modules = modules()
        self.links = {name: name for name in self.modules}
        self.classes = set()
        for name, value, home in self.public():
            self.links |= {way: f"{home}.{name}" for way in (name, f"{home}.{name}", f"{home.partition('.')[2]}.{name}")}
            if inspect.isclass(value):
                self.classes.add(name)
                self.links |= {f"{name}.{member}": f"{home}.{name}.{member}" for member in members(value)}

    def public(self) -> Iterator[tuple[str, Any, str]]:
        """Every public name with its value and the module that defines it."""
        for full, module in self.modules.items():
            for name in module.__all__:
                value = getattr(module, name)
                home = getattr(value, "__module__", full)
                yield name, value, home if home in self.modules else full

    def inline(self, text: str, owner: str = "") -> str:
        """Running text of a docstring."""

        def mark(found: re.Match[str]) -> str:
            if found[0].startswith("``"):
                return found[0]
            name = found[0].strip("`")
            full = self.links.get(f"{owner}.{name}") or self.links.get(name)
            if found[0] == name:
                return "\\" + name
            return f":{'ref' if full in self.modules else 'py:obj'}:`{name} <{full}>`" if full else f"``{name}``"

        return re.sub(r"``.+?``|`[^`]+`|[\\*_|]", mark, text, flags=re.DOTALL)

    def docstring(self, value: Any, owner: str = "") -> list[str]:
        """Paragraphs, and each section of Google's style as a field that holds a list of definitions."""
        text = inspect.cleandoc((value if isinstance(value, str) else getattr(value, "__doc__", "")) or "")
        first, *rest = re.split(rf"^({'|'.join(SECTIONS)}):\n((?:[ \t]+.*\n|\n)+)", text + "\n", flags=re.MULTILINE)
        lines = ["", *self.inline(first, owner).splitlines(), ""]
        for heading, body, after in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
            lines.append(f":{SECTIONS[heading]}:")
            for line in inspect.cleandoc(body).splitlines():
                names = re.match(r"([\w., ]+): (?=\S)", line) if heading != "Returns" else None
                if names:
                    lines.append("    " + ", ".join(f"``{name}``" for name in names[1].split(", ")))
                    line = "    " + line[names.end() :]
                lines.append("    " + self.inline(line, owner))
            lines += ["", *self.inline(after, owner).splitlines(), ""]
        return lines

    def type(self, annotation: Any) -> str:
        """A type as written, with the library's own classes as links."""
        text = getattr(annotation, "__forward_arg__", annotation)
        text = text if isinstance(text, str) else inspect.formatannotation(text)
        return re.sub(r"[\w.]+", lambda word: f"~{self.links[word[0]]}" if word[0] in self.classes else word[0], text)

    def signature(self, value: Any) -> str:
        """The arguments; ``...`` stands for a default that is no short literal."""
        found, empty, shown = inspect.signature(value), inspect.Parameter.empty, []
        for one in found.parameters.values():
            text = repr(one.default)
            default = one.default if one.default is empty else Source(text if len(text) < 40 and "<" not in text else "...")
            kind = one.annotation if one.annotation is empty else Source(self.type(one.annotation))
            shown += [one.replace(annotation=kind, default=default)] if one.name != "self" else []
        bare = inspect.isclass(value) or found.return_annotation is empty
        returned = empty if bare else Source(self.type(found.return_annotation))
        return str(found.replace(parameters=shown, return_annotation=returned))

    def entry(self, name: str, value: Any, told: tuple[str, str]) -> list[str]:
        """A name and all that is said of it."""
        if isinstance(value, FunctionType):
            return block("function", name + self.signature(value), self.docstring(value))
        if not inspect.isclass(value):
            text = ", ".join(map(str, value)) if isinstance(value, Mapping | tuple) else told[0]
            return block("data", name, [*self.docstring(told[1]), f"``{text}``"])
        bases = [base.__name__ for base in value.__bases__ if base.__name__ in self.classes]
        lines = [f"A :py:obj:`{base} <{self.links[base]}>`, with all that it has." for base in bases]
        lines += self.docstring(value, name) + self.docstring(vars(value).get("__init__"), name)
        for member, method in members(value).items():
            if isinstance(method, property):
                kind = self.type(inspect.signature(method.fget).return_annotation)
                lines += block("property", member, [f":type: {kind}", *self.docstring(method, name)])
            else:
                head = member + self.signature(getattr(value, member))
                lines += block("method", head, self.docstring(method, name))
        if issubclass(value, BaseException):
            return block("exception", name, lines)
        return block("class", name + self.signature(value), lines)


def block(directive: str, head: str, body: list[str]) -> list[str]:
    """A directive of the Python domain."""
    return ["", f".. py:{directive}:: {head}", *("   " + line for line in body), ""]


class LibraryApi(SphinxDirective):
    """``{library-api}``: a section for each module; the page is read again when a module changes."""

    def run(self) -> list[nodes.Node]:
        writer = Writer()
        self.env.note_dependency(str(importlib.import_module(PACKAGE).__file__))
        lines = []
        for full, module in writer.modules.items():
            self.env.note_dependency(str(module.__file__))
            told = assignments(module)
            lines += [full, "=" * len(full), "", f".. py:currentmodule:: {full}", *writer.docstring(module)]
            for name in module.__all__:
                target = writer.links[name]
                if target == f"{full}.{name}":
                    lines += writer.entry(name, getattr(module, name), told.get(name, ("", "")))
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
