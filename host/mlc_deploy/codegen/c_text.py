"""Words of C: types, identifiers, constants, and where parentheses and line breaks are needed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from ..ir import Const, Expr, dtype_of, value_range

# The binding strength of C's operators, loosest first.
ANY, OR, AND, BITS, COMPARE, SHIFT, SUM, PRODUCT, UNARY, ATOM = range(10)
LEVELS = {"+": SUM, "-": SUM, "*": PRODUCT, "/": PRODUCT, "<<": SHIFT, ">>": SHIFT}
LEVELS |= dict.fromkeys(("&", "|", "^"), BITS)
INDEX = "index"  # the type of loop variables and offsets, ptrdiff_t, beside the dtypes
Text = tuple[str, int]  # an expression in C, and the binding strength of its outermost operator


def identifier(name: str) -> str:
    """A name as C takes it: "onnx::Conv.1" -> "onnx__Conv_1"."""
    return re.sub(r"\W|^(?=\d)", "_", name, flags=re.ASCII)


def value_type(dtype: str) -> str:
    """The C type that computes with a dtype."""
    match dtype:
        case "float16" | "float32":
            return "float"
        case "float64":
            return "double"
        case "bool":
            return "bool"
        case "index":
            return "ptrdiff_t"
    return f"{dtype}_t"


def memory_type(dtype: str) -> str:
    """The C type of a dtype's elements in memory."""
    return {"float16": "uint16_t", "bool": "uint8_t"}.get(dtype) or value_type(dtype)


def placed(text: Text, outer: int) -> str:
    """The text, in parentheses where it binds looser than its place demands."""
    return f"({text[0]})" if text[1] < outer else text[0]


def indented(lines: Iterator[str]) -> Iterator[str]:
    return (f"    {line}" for line in lines)


def wrapped(opening: str, items: Sequence[str]) -> str:
    """`opening` and items in parentheses, each on its own line where one line is too long."""
    line = f"{opening}{', '.join(items)})"
    return line if len(line) <= 92 else opening + "\n        " + ",\n        ".join(items) + ")"


def constant(value: Any, dtype: str) -> Text:
    """A constant, exactly: floats in decimal where that is short, else in hexadecimal."""
    kind = dtype_of(dtype)
    if kind.kind == "float":
        return _float(float(value), dtype)
    if kind.kind == "bool":
        return ("true" if value else "false"), ATOM
    if value == value_range(dtype)[0] and kind.kind == "int" and kind.bits >= 32:
        return f"INT{kind.bits}_MIN", ATOM  # its digits alone would be a wider constant
    text = f"{value}u" if dtype == "uint32" else str(value)
    if kind.bits == 64:
        text = f"{dtype.upper()}_C({value})"
    return text, ATOM if value >= 0 else UNARY


def _float(value: float, dtype: str) -> Text:
    if math.isnan(value):
        text = "NAN"
    elif math.isinf(value):
        text = "INFINITY"
    else:
        exact = format(Decimal(abs(value)), "f")
        exact = exact if "." in exact else f"{exact}.0"
        mantissa, _, exponent = abs(value).hex().partition("p")
        text = exact if len(exact) <= 8 else f"{mantissa.rstrip('0').rstrip('.')}p{exponent}"
        text += "" if dtype == "float64" else "f"
    negative = math.copysign(1, value) < 0 and not math.isnan(value)
    return (f"-{text}", UNARY) if negative else (text, ATOM)


def known(op: str, a: Expr, b: Expr) -> str | None:
    """The value of a comparison that the dtype's range decides: compilers warn about these."""
    if not dtype_of(a.dtype).is_integer or op in ("==", "!="):
        return None
    if op in (">", ">="):
        op, a, b = ("<" if op == ">" else "<="), b, a
    low_a, high_a = _range(a)
    low_b, high_b = _range(b)
    if high_a < low_b or (op == "<=" and high_a <= low_b):
        return "true"
    if low_a > high_b or (op == "<" and low_a >= high_b):
        return "false"
    return None


def _range(e: Expr) -> tuple[float, float]:
    return (e.value, e.value) if isinstance(e, Const) else value_range(e.dtype)
