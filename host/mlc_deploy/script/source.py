"""The lines of a script, for errors that point at line and column."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import ScriptError

AROUND = 48  # characters of a line shown to the left of an error


@dataclass(frozen=True, slots=True)
class Source:
    """The lines of a script. Line 1 of the syntax tree is line `first` of the file."""

    file: str
    lines: tuple[str, ...]
    first: int = 1

    def error(self, at: ast.AST, what: str, mend: str = "") -> ScriptError:
        """The error that points at a part of the syntax tree."""
        line, column = at.lineno, at.col_offset  # type: ignore[attr-defined]
        text = self.lines[line - 1].rstrip("\n")
        start = len(text.encode()[:column].decode())
        one_line = at.end_lineno == line  # type: ignore[attr-defined]
        end = len(text.encode()[: at.end_col_offset].decode()) if one_line else len(text)  # type: ignore[attr-defined]
        return self.error_at(line, start, what, mend, max(end - start, 1))

    def error_at(
        self, line: int, column: int, what: str, mend: str = "", width: int = 1
    ) -> ScriptError:
        """The error at a line of the tree (from 1) and a column in characters (from 0)."""
        text = self.lines[line - 1].rstrip() if line <= len(self.lines) else ""
        text = "".join(c if c.isprintable() else " " for c in text)
        shown, mark = _part(text, column, width)
        place = f"{self.file}:{self.first + line - 1}:{column + 1}"
        return ScriptError(what, where=f"{place}\n{shown}\n{mark}", mend=mend)

    def parse(self) -> ast.Module:
        """The syntax tree. Raises ScriptError for text that is not Python."""
        text = "".join(self.lines)
        # An indented function is parsed inside an `if`, so that columns stay those of the file.
        indented = text[:1] in (" ", "\t")
        try:
            tree = ast.parse("if True:\n" + text if indented else text)
        except SyntaxError as error:
            line = max((error.lineno or 1) - indented, 1)
            column = max((error.offset or 1) - 1, 0)
            raise self.error_at(line, column, f"this is not Python: {error.msg}") from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise ScriptError(
                f"this cannot be parsed: {error or 'too deeply nested'}", where=self.file
            ) from None
        if not indented:
            return tree
        assert isinstance(tree.body[0], ast.If)
        ast.increment_lineno(tree, -1)
        return ast.Module(tree.body[0].body, [])


def _part(text: str, column: int, width: int) -> tuple[str, str]:
    """The shown part of a line, at most 2 * AROUND characters and dots, and the marks below it."""
    first = max(len(text) - len(text.lstrip()), column - AROUND)
    last = max(first + 2 * AROUND, column + 1)
    before = "…" if text[:first].strip() else ""
    after = "…" if text[last:].strip() else ""
    blank = " " * (column - first + len(before))
    return before + text[first:last] + after, blank + "^" * max(min(width, last - column), 1)


def definition_of(function: Callable[..., Any], decorator: str) -> tuple[Source, ast.FunctionDef]:
    """The source of a decorated function, and its `def`. Raises ScriptError."""
    source = source_of(function)
    (definition,) = source.parse().body
    if not isinstance(definition, ast.FunctionDef):
        raise source.error(definition, f"{decorator} is for functions written with `def`")
    return source, definition


def parameters_of(definition: ast.FunctionDef, source: Source, mend: str) -> list[ast.arg]:
    """The parameters of a `def`. Raises ScriptError unless all are plain ones."""
    given = definition.args
    if given.vararg or given.kwarg or given.kwonlyargs or given.defaults:
        what = f"function '{definition.name}' has *args, keyword arguments or defaults"
        raise source.error(definition, what, mend)
    return [*given.posonlyargs, *given.args]


def misplaced(decorator: str, word: str) -> ScriptError:
    """The error for a call of a word that only the parser understands."""
    mend = f"use it in a function decorated with {decorator}"
    return ScriptError(f"{word} is called outside of a script", mend=mend)


def source_of(function: Callable[..., Any]) -> Source:
    """The source of a function, from its first decorator on. Raises ScriptError without one."""
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        raise ScriptError(
            f"the source of '{getattr(function, '__name__', function)}' cannot be found",
            mend="write it in a file, or use from_script(text)",
        ) from None
    return Source(inspect.getsourcefile(function) or "<unknown>", tuple(lines), max(first, 1))
