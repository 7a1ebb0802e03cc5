"""The text of a graph function as its author wrote it, with the words and numbers around it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from .graph_words import is_graph_words
from .values import is_vocabulary, number


def as_text(definition: ast.FunctionDef, names: Mapping[str, Any]) -> str:
    """A definition that reads back by itself: numbers of the surroundings are written out."""
    written: ast.AST = _Written(names).visit(ast.parse(ast.unparse(definition)))
    return ast.unparse(ast.fix_missing_locations(written))


class _Written(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, Any]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = self.names.get(node.id)
        if is_graph_words(value):
            return ast.Name("R", node.ctx)
        if is_vocabulary(value):
            return ast.Name("T", node.ctx)
        if isinstance(node.ctx, ast.Load) and (number(value) or isinstance(value, str)):
            return ast.Constant(value)
        return node
