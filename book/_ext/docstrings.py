"""The library's docstrings and signatures as reStructuredText, for api_pages.py.

A docstring is plain text: names in single backticks are links, code stands in double ones, the sections are Google's, and
nothing else is markup, so that the mathematics in it is safe.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import textwrap
from types import FunctionType, ModuleType
from typing import Any

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


def members(owner: type) -> dict[str, Any]:
    """The public methods and properties that a class defines itself, its call among them."""
    fields = {field.name for field in dataclasses.fields(owner)} if dataclasses.is_dataclass(owner) else set()
    public = {name: value for name, value in vars(owner).items() if name[0] != "_" or name == "__call__"}
    return {name: value for name, value in public.items() if isinstance(value, METHODS) and name not in fields}


class Names:
    """The public names of the library, and what links to them; ``links`` has the full name behind each way to name one."""

    def __init__(self) -> None:
        self.modules = modules()
        self.current = ""  # the module that is being written about: its names come before those of others
        self.links = {name: name for name in self.modules}
        self.classes: set[str] = set()
        for full, module in self.modules.items():
            for name in module.__all__:
                value = getattr(module, name)
                home = getattr(value, "__module__", full)
                target = f"{home if home in self.modules else full}.{name}"
                self.links |= {f"{full}.{name}": target, f"{full.partition('.')[2]}.{name}": target}
                self.links.setdefault(name, target)
                if inspect.isclass(value):
                    self.classes.add(name)
                    self.links |= {f"{name}.{member}": f"{target}.{member}" for member in members(value)}

    def find(self, name: str, owner: str = "") -> str | None:
        """The full name of what a docstring calls so, within a class or outside."""
        ways = f"{owner}.{name}", f"{self.current}.{name}", name
        return next((self.links[way] for way in ways if way in self.links), None)

    def inline(self, text: str, owner: str = "") -> str:
        """Running text of a docstring."""

        def mark(found: re.Match[str]) -> str:
            if found[0].startswith("``"):
                return found[0]
            name = found[0].strip("`")
            full = self.find(name, owner)
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
            for line in textwrap.dedent(body).strip().splitlines():
                names = re.match(r"([\w*][\w., *]*): (?=\S)", line) if heading != "Returns" else None
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
        return re.sub(r"[\w.]+", lambda word: f"~{self.find(word[0])}" if word[0] in self.classes else word[0], text)

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
