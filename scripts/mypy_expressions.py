"""A plugin of mypy: no comparison of expressions asks for their truth.

`a == b` of expressions is an expression, so `if a == b`, `in`, `index`, `remove`, `count` and the
equality of tuples and lists that hold expressions would raise UnknownValue when they run.
`same_as`, `same_expr`, `same_shape` and `is_const` of mlc_deploy.ir answer such questions.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mypy.plugin import MethodContext, Plugin
from mypy.types import Instance, NoneType, ProperType, TupleType, Type, UnionType, get_proper_type

EXPRESSIONS = ("mlc_deploy.ir.nodes.Arithmetic", "mlc_deploy.frontend.node.Extent")
COMPARE = ("__eq__", "__ne__", "__contains__", "index", "count", "remove")
SEQUENCES = ("list", "tuple", "Sequence", "Collection", "Iterable")
COMPILER = "host"  # code of the compiler writes a.equal(b) for an expression, users a == b
ADVICE = "use same_as, same_expr, same_shape, is_const; .equal makes an expression"


def holds_expressions(t: Type, inside: bool = False) -> bool:
    """Whether values of a type hold expressions in a sequence; inside: or are expressions."""
    found: ProperType = get_proper_type(t)
    match found:
        case Instance():
            if any(base.fullname in EXPRESSIONS for base in found.type.mro):
                return inside
            if found.type.name not in SEQUENCES:
                return False
            return any(holds_expressions(a, True) for a in found.args)
        case TupleType():
            return any(holds_expressions(a, True) for a in found.items)
        case UnionType():
            return any(holds_expressions(a, inside) for a in found.items)
    return False


def never_equal(t: Type) -> bool:
    """Whether no expression is compared with values of a type: texts and None."""
    found = get_proper_type(t)
    return isinstance(found, NoneType) or (isinstance(found, Instance) and found.type.name == "str")


def in_compiler(context: MethodContext) -> bool:
    return Path(context.api.path).parts[0] == COMPILER


def sequences(context: MethodContext) -> Type:
    """Tests compare shapes with known numbers; in the compiler these may be expressions."""
    others = [t for types in context.arg_types for t in types]
    one = holds_expressions(context.type)
    both = one and all(holds_expressions(t, True) for t in others)
    either = one or any(map(holds_expressions, others))
    if both or (either and in_compiler(context) and not any(map(never_equal, others))):
        context.api.fail(f"Expressions are compared for their truth [{ADVICE}]", context.context)
    return context.default_return_type


def expressions(context: MethodContext) -> Type:
    sides = [context.type, *(t for types in context.arg_types for t in types)]
    if in_compiler(context) and any(holds_expressions(t, True) for t in sides):
        context.api.fail(f"An expression is compared by == or != [{ADVICE}]", context.context)
    return context.default_return_type


class Expressions(Plugin):
    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        owner, _, name = fullname.rpartition(".")
        if name in COMPARE and owner.rpartition(".")[2] in SEQUENCES:
            return sequences
        if name in ("__eq__", "__ne__"):
            return expressions
        return None


def plugin(version: str) -> type[Plugin]:
    return Expressions
