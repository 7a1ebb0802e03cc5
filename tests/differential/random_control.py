"""Random loops, scans and branches of ONNX, whose bodies are random graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import GraphProto, ValueInfoProto, helper, numpy_helper

from tests.differential.random_nodes import NODES
from tests.differential.random_onnx import FLOATS, NUMBERS, Drawn, Value, names_in
from tests.onnx_models import Array

Maker = Callable[[Drawn], object]

DEEPEST = 2  # bodies within each other
MOST_TURNS = 5


def _info(name: str, array: Array) -> ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, kind, array.shape)


def _within(d: Drawn, **params: Array) -> tuple[Drawn, dict[str, Value]]:
    """A body that sees all that is known outside, and its parameters. What these are in another
    turn nobody knows, so no step follows on them."""
    prefix = f"{d.prefix}b{len(d.nodes)}_"
    own = {key: Value(f"{prefix}{key}", array, False) for key, array in params.items()}
    seen = [*d.values, *own.values()]
    return Drawn(d.draw, seen, prefix=prefix, depth=d.depth + 1, open_dim=d.open_dim), own


def _filled(d: Drawn) -> None:
    for _ in range(d.number(1, 3)):
        d.one_of(EVERYWHERE if d.depth < DEEPEST else NODES)(d)


def _like(d: Drawn, x: Value) -> Value:
    """Something of the shape and dtype of x that the body computes, and that stays small."""
    own = [v for v in d.values if v.shape == x.shape and v.array.dtype == x.array.dtype]
    found = d.one_of(own)
    made = d.node("Tanh", [found]) if x.array.dtype.kind == "f" else None
    return made or d.node("Identity", [found]) or found


def _body(d: Drawn, inputs: Sequence[Value], outputs: Sequence[Value]) -> GraphProto:
    """The graph of a body. An output is computed in it."""
    named: list[ValueInfoProto] = []
    nodes = list(d.nodes)
    for number, value in enumerate(outputs):
        name = f"{d.prefix}out{number}"
        nodes.append(helper.make_node("Identity", [value.name], [name]))
        named.append(_info(name, value.array))
    tensors = [numpy_helper.from_array(a, n) for n, a in (d.constants | d.inputs).items()]
    return helper.make_graph(
        nodes, f"{d.prefix}body", [_info(v.name, v.array) for v in inputs], named, tensors
    )


def _read(d: Drawn, *bodies: GraphProto) -> list[Value]:
    """What bodies read of the values outside."""
    names = {name for body in bodies for name in names_in(body)}
    return [v for v in d.values if v.name in names]


def _condition(d: Drawn) -> Value | None:
    """A truth of the data."""
    x = d.value(exact=True)
    most = x and d.node("ReduceMax", [x], True, keepdims=0)
    return most and d.node("Greater", [most, d.known(np.float32(d.number(-1, 2)))], True)


def _if(d: Drawn) -> object:
    condition = _condition(d)
    if condition is None:
        return None
    then, _ = _within(d)
    then.prefix += "t"
    _filled(then)
    result = then.value(NUMBERS)
    if result is None:
        return None
    otherwise, _ = _within(d)
    _filled(otherwise)
    same = [v for v in otherwise.values
            if v.shape == result.shape and v.array.dtype == result.array.dtype]  # fmt: skip
    other = d.one_of(same) if same else otherwise.leaf(result.shape, result.array.dtype.name, True)
    branches = {
        "then_branch": _body(then, [], [result]),
        "else_branch": _body(otherwise, [], [other]),
    }
    return d.several("If", [condition], 1, _read(d, *branches.values()), **branches)


def _loop(d: Drawn) -> object:
    """Of a trip count that is constant or an input, or until the data say so."""
    state = d.value(NUMBERS)
    if state is None:
        return None
    turns = d.number(1, MOST_TURNS)
    going, number = np.array(True), np.array(0)
    inner, own = _within(d, turn=number, going=going, state=state.array)
    until = d.leaf((MOST_TURNS,), "bool", False) if d.chance() else None
    again = inner.node("Gather", [until, own["turn"]]) if until else own["going"]
    if again is None:
        return None
    _filled(inner)
    after = _like(inner, own["state"])
    collected = inner.value(FLOATS) if d.chance() else None
    results = [] if collected is None else [collected]
    body = _body(inner, list(own.values()), [again, after, *results])
    counted = d.known(np.array(turns), constant=bool(results) or d.chance())
    inputs = [counted, d.known(going), state]
    made = d.several("Loop", inputs, 1 + len(results), _read(d, body), body=body)
    if made and until:  # how many results there are only a run decides: nothing follows on them
        d.values = [v for v in d.values if v not in made[1:]]
    return made


def _scan(d: Drawn) -> object:
    rows, state = d.value(NUMBERS, (2, 3)), d.value(NUMBERS)
    if rows is None or state is None or rows.shape[0] > 9:
        return None
    inner, own = _within(d, state=state.array, row=rows.array[0])
    _filled(inner)
    after = _like(inner, own["state"])
    result = inner.value(NUMBERS)
    if result is None:
        return None
    body = _body(inner, list(own.values()), [after, result])
    ways = {f"scan_{end}_directions": [d.number(0, 1)] for end in ("input", "output")}
    return d.several("Scan", [state, rows], 2, _read(d, body), body=body, num_scan_inputs=1, **ways)


CONTROL: tuple[Maker, ...] = (_if, _loop, _scan)
EVERYWHERE: tuple[Maker, ...] = (*NODES, *(maker for maker in CONTROL for _ in range(8)))
