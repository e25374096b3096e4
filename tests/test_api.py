"""What is public in the library is described, stands on its floor, and is on the pages that are made from it."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from types import FunctionType, ModuleType

import pytest
import site_checks as check
from api_pages import assignments, members
from test_site import site  # noqa: F401

import resnorm_lib
from resnorm_lib.norms import KINDS
from resnorm_lib.placements import PLACEMENTS

MODULES = sorted(found.name for found in pkgutil.iter_modules(resnorm_lib.__path__))
PUBLIC = [
    (module, name)
    for module in MODULES
    for name in getattr(importlib.import_module(f"resnorm_lib.{module}"), "__all__", ())
]
SIMPLE = {"self", "cls", "level", "generator"}  # their meaning is the same everywhere, and the module says it


def module_of(name: str) -> ModuleType:
    return importlib.import_module(f"resnorm_lib.{name}")


def documented(module: str, name: str) -> dict[str, object]:
    """A public name, its constructor where that has a docstring, and its public members, by their names."""
    value = getattr(module_of(module), name)
    found = {name: value}
    if inspect.isclass(value):
        found |= {f"{name}.{member}": item for member, item in members(value).items()}
    return found


def docstring(module: str, name: str, value: object) -> str:
    """What is said of it: of a constant, the string that stands under its assignment."""
    if inspect.isclass(value) and not value.__module__.startswith("resnorm_lib"):
        return ""
    if inspect.isclass(value) or isinstance(value, FunctionType | property | classmethod | staticmethod):
        own = value.__doc__ or ""
        # A dataclass or a named tuple without a docstring is given its signature for one.
        return "" if re.match(rf"{name}\(", own) else inspect.cleandoc(own)
    return inspect.cleandoc(assignments(module_of(module)).get(name, ("", ""))[1])


def ends_in_a_full_stop(text: str) -> bool:
    """Whether the first sentence, or the first paragraph before a list, is a sentence."""
    first = text.split("\n\n")[0]
    return bool(re.match(r".+?\.(\s|$)", first, flags=re.DOTALL))


@pytest.mark.parametrize(("module", "name"), PUBLIC)
def test_public_name_has_a_docstring(module: str, name: str) -> None:
    for full, value in documented(module, name).items():
        text = docstring(module, full, value)
        assert text, f"resnorm_lib.{module}.{full} has no docstring: say in one sentence what it is"
        assert ends_in_a_full_stop(text), f"resnorm_lib.{module}.{full}: the first sentence ends without a full stop"


@pytest.mark.parametrize(("module", "name"), PUBLIC)
def test_parameters_are_described(module: str, name: str) -> None:
    for full, value in documented(module, name).items():
        if not isinstance(value, FunctionType):
            continue
        text = docstring(module, full, value)
        names = {key for key in inspect.signature(value).parameters if key not in SIMPLE}
        missing = sorted(key for key in names if not re.search(rf"(?<!\w){key}(?!\w)", text))
        # One argument needs no name where the sentence and the shapes say what goes in.
        assert len(names) < 2 or "Args:" in text or len(missing) < 2, f"resnorm_lib.{module}.{full} does not say what {missing} are"
        listed = re.search(r"^Args:\n((?:[ \t]+.*\n|\n)+)", text + "\n", flags=re.MULTILINE)
        if listed:
            told = set(re.findall(r"\w+", " ".join(re.findall(r"^    (\S[^:]*):", listed[1], flags=re.MULTILINE))))
            assert told <= names | SIMPLE, f"resnorm_lib.{module}.{full} describes {sorted(told - names)}, which it does not take"


@pytest.mark.parametrize("module", MODULES)
def test_module_says_what_is_public(module: str) -> None:
    names = getattr(module_of(module), "__all__", [])
    assert names, f"resnorm_lib.{module} has no __all__"
    assert len(set(names)) == len(names)
    assert ends_in_a_full_stop(inspect.getdoc(module_of(module)) or "")


def standing() -> dict[str, tuple[int, set[str]]]:
    """For each module its floor, and the modules of the same floor on which it stands: those before a "then" or "stand"."""
    text = inspect.getdoc(resnorm_lib) or ""
    found: dict[str, tuple[int, set[str]]] = {}
    for number, floor in re.findall(r"^(\d+)\. (.+(?:\n   .+)*)", text, flags=re.MULTILINE):
        for clause in floor.split(";"):
            below: set[str] = set()
            for step in re.split(r"\bthen\b|\bstands?\b", clause):
                names = re.findall(r"``(\w+)``", step)
                for name in names:
                    found.setdefault(name, (int(number), set(below)))
                below |= set(names)
    return found


def imported(module: str) -> set[str]:
    """The library's modules that a module imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(inspect.getsource(module_of(module)))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "resnorm_lib." * bool(node.level) + (node.module or "")
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {part.split(".")[1] for part in names if part.startswith("resnorm_lib.")}
    return found & set(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_from_floors_below(module: str) -> None:
    floors = standing()
    assert module in floors, f"resnorm_lib/__init__.py does not say on which floor {module} stands"
    floor, below = floors[module]
    wrong = sorted(name for name in imported(module) if floors.get(name, (floor,))[0] >= floor and name not in below)
    assert not wrong, f"resnorm_lib.{module} (floor {floor}) imports {wrong}, which is not below it"


def test_every_floor_is_a_module() -> None:
    assert set(standing()) == set(MODULES)


def test_api_page_has_every_public_name(site: Path) -> None:  # noqa: F811
    page = check.parsed(site / "book" / "api.html")
    anchors = {element["id"] for element in page.select("dt[id]")}
    for module, name in PUBLIC:
        value = getattr(module_of(module), name)
        home = getattr(value, "__module__", "")
        full = f"{home if home.startswith('resnorm_lib') else f'resnorm_lib.{module}'}.{name}"
        assert full in anchors, f"the page of the library does not have {full}"
        if inspect.isclass(value):
            assert {f"{full}.{member}" for member in members(value)} <= anchors
    assert not [text for text in page.select_one("article").stripped_strings if re.search(r":py:|\.\. |``", text)]


def test_notation_page_has_every_placement_and_norm(site: Path) -> None:  # noqa: F811
    page = check.parsed(site / "book" / "notation.html")
    shown = [element.get_text() for element in page.select("td code")]
    assert not {*PLACEMENTS, *KINDS} - set(shown)
    equations = " ".join(element.get_text() for element in page.select("td .math"))
    for row in PLACEMENTS.values():
        for part in re.split(r",\\(?:quad)? +", row.equation):
            assert part in equations, f"the equation of {row.name} is not on the page"
