"""Operators written as arithmetic, as by older exporters, become single calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..passes.context import optional
from .dims import same_type
from .nodes import Call, Constant, Function, Value, Var
from .patterns import Match, Name, Pattern, Wild, match, op, roots
from .rewrite import Rewriting, rewrite

x = Wild("x")
axes, axis, epsilon = Name("axes"), Name("axis"), Name("epsilon")


def _mean(p: Pattern) -> Pattern:
    return op("mean", p, axes=axes, keepdims=True)


_centred = x - _mean(x)
_shifted = x - op("max", x, axes=axes, keepdims=True)
_tanh = op("tanh", (x + x**3 * 0.044715) * math.sqrt(2 / math.pi))
_tanh_factored = op("tanh", x * (x**2 * 0.044715 + 1.0) * math.sqrt(2 / math.pi))


def _softmax_of(p: Pattern) -> Pattern:
    return op("exp", p) / op("sum", op("exp", p), axes=axes, keepdims=True)


# The attributes of the recognized operator, computed from the match.
Attributes = Callable[[Match], dict[str, Any] | None]


def _none(m: Match) -> dict[str, Any]:
    return {}


def _normalization(m: Match) -> dict[str, Any] | None:
    return {"axes": m["axes"], "epsilon": m["epsilon"]} if m["epsilon"] >= 0 else None


def _one_axis(m: Match) -> dict[str, Any] | None:
    return {"axis": m["axes"][0]} if len(m["axes"]) == 1 else None


def _line(m: Match) -> dict[str, Any] | None:
    return {"alpha": m["alpha"], "beta": m["beta"]}


TABLE: tuple[tuple[str, Pattern, Attributes], ...] = (
    ("layer_norm", _centred / (_mean(_centred**2) + epsilon) ** 0.5, _normalization),
    (
        "layer_norm",
        _centred / (_mean(x**2) - _mean(x) ** 2 + epsilon) ** 0.5,
        _normalization,
    ),
    ("rms_norm", x / (_mean(x**2) + epsilon) ** 0.5, _normalization),
    ("softmax", _softmax_of(_shifted), _one_axis),
    ("softmax", _softmax_of(x), _one_axis),
    ("log_softmax", op("log", op("softmax", x, axis=axis)), lambda m: {"axis": m["axis"]}),
    ("gelu", x * (op("erf", x * math.sqrt(0.5)) + 1.0) * 0.5, lambda m: {"approximate": "none"}),
    ("gelu", x * (_tanh + 1.0) * 0.5, lambda m: {"approximate": "tanh"}),
    ("gelu", x * (_tanh_factored + 1.0) * 0.5, lambda m: {"approximate": "tanh"}),
    ("sigmoid", (op("exp", x * -1.0) + 1.0) ** -1.0, _none),
    ("silu", x * op("sigmoid", x), _none),
    ("silu", x / (op("exp", x * -1.0) + 1.0), _none),
    (
        "hard_sigmoid",
        op("clip", x + 3.0, min=0.0, max=6.0) * (1 / 6),
        lambda m: {"alpha": 1 / 6, "beta": 0.5},
    ),
    (
        "hard_sigmoid",
        op("clip", x * (1 / 6) + 0.5, min=0.0, max=1.0),
        lambda m: {"alpha": 1 / 6, "beta": 0.5},
    ),
    ("hard_swish", x * op("hard_sigmoid", x, alpha=1 / 6, beta=0.5), _none),
    ("hard_swish", x * op("clip", x + 3.0, min=0.0, max=6.0) * (1 / 6), _none),
    ("softplus", op("log", op("exp", x) + 1.0), _none),
    ("mish", x * op("tanh", op("softplus", x)), _none),
)


_BY_ROOT = {
    root: [entry for entry in TABLE if root in roots(entry[1])]
    for root in {root for _, pattern, _ in TABLE for root in roots(pattern)}
}


@optional(level=2)
def recognize_operators(function: Function) -> Function:
    """(x - mean(x)) / sqrt(mean((x - mean(x)) ^ 2) + e)   =>   layer_norm(x), and others (TABLE)"""
    return rewrite(function, (_recognized,))


def _recognized(graph: Rewriting, out: Var, call: Call) -> Value | None:
    if not out.type.dtype.startswith("float"):
        return None
    for name, pattern, attributes in _BY_ROOT.get(call.op, ()):
        found = match(pattern, graph, call, out)
        if found is None or isinstance(found["x"], Constant):
            continue
        attrs = attributes(found)
        if attrs is not None and same_type(found["x"].type, out.type):
            return graph.emit(name, found["x"], **attrs)
    return None
