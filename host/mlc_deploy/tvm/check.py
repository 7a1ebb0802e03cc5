"""Says which of TVM's names a script uses that do not exist here. The script does not run."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from . import absent
from .absent import ROOT


@dataclass(frozen=True, slots=True)
class Missing:
    line: int
    what: str
    mend: str


def check(text: str) -> list[Missing]:
    """The missing names, each once, by line. Raises SyntaxError for a text that is not Python."""
    tree = ast.parse(text)
    known = dict(_imported(tree))
    found: dict[str, Missing] = {}
    for line, name in _names(tree, known):
        told = _missing(name)
        if told is not None and told not in found:
            what, _, mend = told.partition("\n  try: ")
            found[told] = Missing(line, what, mend)
    return sorted(found.values(), key=lambda m: m.line)


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The names that imports bind, each with TVM's dotted name: ("te", "tvm.te")."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                for alias in names:
                    full = _tvm(alias.name)
                    if full and alias.asname:
                        yield alias.asname, full
                    elif full:
                        yield alias.name.partition(".")[0], _tvm(alias.name.partition(".")[0]) or ""
            case ast.ImportFrom(str(module), names) if full := _tvm(module):
                for alias in names:
                    yield alias.asname or alias.name, f"{full}.{alias.name}"


def _tvm(module: str) -> str | None:
    """TVM's name of a module, which may be imported under the name that it has here."""
    name = module.removeprefix("mlc_deploy.")
    return name if name == ROOT or name.startswith(f"{ROOT}.") else None


def _names(tree: ast.AST, known: dict[str, str]) -> Iterator[tuple[int, str]]:
    """TVM's dotted names in a script, with their lines."""
    inner: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                yield from ((node.lineno, full) for a in names if (full := _tvm(a.name)))
            case ast.ImportFrom(str(module), names) if full := _tvm(module):
                yield from ((node.lineno, f"{full}.{a.name}") for a in names if a.name != "*")
            case ast.Attribute() if id(node) not in inner:
                parts: list[str] = []
                at: ast.expr = node
                while isinstance(at, ast.Attribute):
                    parts.append(at.attr)
                    at = at.value
                    inner.add(id(at))
                if isinstance(at, ast.Name) and known.get(at.id):
                    yield node.lineno, ".".join([known[at.id], *reversed(parts)])


def _missing(name: str) -> str | None:
    """The message for the first part of a dotted name that does not exist, or None."""
    found: Any = importlib.import_module(__package__)
    at = ROOT
    for part in name.split(".")[1:]:
        at = f"{at}.{part}"
        try:
            found = getattr(found, part)
        except (AttributeError, ImportError) as error:
            told = str(error)
            return told if told.startswith("there is no ") else absent.message(at)
        if not isinstance(found, ModuleType) and not _is_group(found):
            return None  # what a value has is known when the script runs
    return None


def _is_group(found: Any) -> bool:
    """Whether an object stands for a module of TVM's."""
    own = isinstance(found, type) and found.__module__.startswith(f"{__package__}.")
    return own or type(found).__name__ in ("_Words", "_Transform")
