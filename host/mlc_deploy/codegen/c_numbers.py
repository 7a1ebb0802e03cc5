"""Division, shifts, and conversion of floats in C, as ir/numbers.py defines them: C leaves division
by 0, of the least number by -1, shifts by too much and conversion out of range undefined. A helper
function stands for each that `arith/value_ranges.py` does not prove defined."""

from __future__ import annotations

from ..arith.linear import Ranges
from ..arith.value_ranges import divides, fits, never_negative
from ..ir import Binary, Expr, dtype_of

# SYMBOL and TYPE are replaced, as in c_fixed.py.
HELPERS = {
    "floordiv": """\
static inline TYPE SYMBOL(TYPE a, TYPE b) { /* 0 where b is 0 */
    if (b == 0 || b == -1) {
        return b == 0 ? 0 : (TYPE)(0 - (uint64_t)a);
    }
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}""",
    "floormod": """\
static inline TYPE SYMBOL(TYPE a, TYPE b) { /* 0 where b is 0 */
    if (b == 0 || b == -1) {
        return 0;
    }
    return a % b != 0 && (a < 0) != (b < 0) ? a % b + b : a % b;
}""",
    "div": """\
static inline TYPE SYMBOL(TYPE a, TYPE b) { /* 0 where b is 0 */
    return b == -1 ? (TYPE)(0 - (uint64_t)a) : b == 0 ? 0 : a / b;
}""",
    "mod": """\
static inline TYPE SYMBOL(TYPE a, TYPE b) { /* 0 where b is 0 */
    return b == 0 || b == -1 ? 0 : a % b;
}""",
    "udiv": """\
static inline TYPE SYMBOL(TYPE a, TYPE b) { /* 0 where b is 0 */
    return b == 0 ? 0 : a / b;
}""",
    "umod": """\
static inline TYPE SYMBOL(TYPE a, TYPE b) { /* 0 where b is 0 */
    return b == 0 ? 0 : a % b;
}""",
    "shl": """\
static inline TYPE SYMBOL(TYPE a, uint64_t by) { /* every bit moves out where there are too many */
    return by < 8 * sizeof a ? a << by : 0;
}""",
    "shr": """\
static inline TYPE SYMBOL(TYPE a, uint64_t by) { /* every bit moves out where there are too many */
    return a >> (by < 8 * sizeof a ? by : 8 * sizeof a - 1);
}""",
    "ushr": """\
static inline TYPE SYMBOL(TYPE a, uint64_t by) { /* every bit moves out where there are too many */
    return by < 8 * sizeof a ? a >> by : 0;
}""",
    "within of floats": """\
static inline int32_t SYMBOL(TYPE x) { /* 0 of NaN */
    return x == x ? (int32_t)x : 0;
}""",
    **{
        f"to_{sign}int{bits} of floats": f"""\
static inline {sign}int{bits}_t SYMBOL(TYPE x) {{ /* the nearest there is; 0 of NaN */
    if (x >= (TYPE)0x1p{bits - (not sign)}) {{
        return {sign.upper()}INT{bits}_MAX;
    }}
    if (x {"<= -1" if sign else f"< (TYPE)-0x1p{bits - 1}"}) {{
        return {"0" if sign else f"INT{bits}_MIN"};
    }}
    return x == x ? ({sign}int{bits}_t)x : 0;
}}"""
        for sign in ("", "u")
        for bits in (32, 64)
    },
}
OPERATORS = {"//": "/", "%": "%", "tdiv": "/", "tmod": "%"}


def division(e: Binary, ranges: Ranges) -> str:
    """What divides: C's `/` or `%`, or the name of a helper."""
    unsigned = dtype_of(e.dtype).kind == "uint"
    natural = unsigned or never_negative(e.a, e.b, ranges)
    if divides(e.a, e.b, ranges) and (natural or e.op in ("tdiv", "tmod")):
        return OPERATORS[e.op]
    if natural:
        return "udiv" if e.op in ("//", "tdiv") else "umod"
    return {"//": "floordiv", "%": "floormod", "tdiv": "div", "tmod": "mod"}[e.op]


def conversion(x: Expr, dtype: str, ranges: Ranges) -> str:
    """The helper that makes a float an integer, from which C's own conversion goes on."""
    kind = dtype_of(dtype)
    if kind.bits < 32:
        return "within" if fits(x, dtype, ranges) else "to_int32"
    return f"to_{kind.kind}{kind.bits}"
