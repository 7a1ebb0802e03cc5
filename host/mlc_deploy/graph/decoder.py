"""A decoder with its cache: the keys and values of a text stay on the board.

An exported model takes the tokens of a step, the number of tokens read before, and their keys and
values. It returns the keys and values with the step's appended:

    logits, present = model(input_ids[1, S], past[1, H, P, D], mask[1, P + S], positions[1, S])

Here it becomes a function of the tokens alone. Keys and values are states of `length` rows.
`append_rows` writes the rows of the step, and readers read the first P + S rows. The number of
tokens read is a state, too, and so is the most likely token of the step before. A negative number
among the tokens stands for this token, so a caller can ask for a step before it knows the token.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import GraphError
from ..ir import Dim, is_const
from ..ir import Var as Symbol
from ..ops.plan import SHARED
from .bind import rebuilt
from .dims import same_dim
from .emitter import Emitter
from .extents import EXTENT
from .last_rows import last_rows
from .nodes import (
    AnyCall,
    Binding,
    Call,
    CallBranch,
    Constant,
    Function,
    TensorType,
    Value,
    Var,
    const,
)

POSITION, FILLED = "position", "filled"  # states: tokens read so far, rows of the caches in use
BYTES, SCALE = "int8", "float32"  # dtypes of int8 caches and of the scale of a row
LOGITS, TOKEN = "logits", "token"  # outputs: the last token's logits, and the index of the largest
LIKELIEST = "likeliest"  # a state: TOKEN of the step before


@dataclass(frozen=True, slots=True)
class Parts:
    """The names of a decoder's inputs and outputs. `past` maps each input cache to the output that
    returns it. `mask` and `positions` are None if the model takes none."""

    ids: str
    logits: str
    past: Mapping[str, str]
    mask: str | None = None
    positions: str | None = None


def with_cache(
    function: Function, parts: Parts, length: int, window: int | None = None, stored: str = ""
) -> Function:
    """A decoder as a function of its tokens, whose caches have room for `length` rows.

    window: the number of last tokens that the model needs to go on. With a window, a text may have
    any length: when the caches are full, the rows of the window move to their beginning. Without
    one, at most `length` tokens are read. stored: the dtype of the caches, if it is not the
    model's. int8 caches have a scale for each head and row, in a state of their own. Raises
    GraphError for a model that is no such decoder.
    """
    params = {p.name: p for p in function.params}
    caches = {params[before]: after for before, after in parts.past.items()}
    ids = params[parts.ids]
    steps = ids.type.shape[1]
    rows = next(iter(caches)).type.shape[2]
    assert isinstance(rows, Symbol), f"the caches of '{function.name}' have {rows} rows"
    if not isinstance(steps, Symbol) and not is_const(steps, 1):
        raise GraphError(
            f"'{function.name}' reads {steps} tokens at once, no more and no fewer",
            mend="a model exported with a dynamic length of its input, or of one token",
        )
    most = dict(function.extents)
    assert isinstance(steps, Symbol | int), f"{ids} has {steps} tokens"
    longest = most[steps.name] if isinstance(steps, Symbol) else steps
    if window is not None and window - 1 + longest > length:
        what = (
            f"a window of {window} tokens and a step of {longest} do not fit into a cache of "
            f"{length} rows"
        )
        raise GraphError(what, mend=f"a length of {window - 1 + longest} or more")

    e = Emitter(function)
    position = e.param(POSITION, EXTENT)
    filled = position if window is None else e.param(FILLED, EXTENT)
    count: Value = params[steps.name] if isinstance(steps, Symbol) else const(steps, "int64")
    dropped: tuple[Value, ...] = ()
    if window is None:
        room = e.emit("subtract", const(length, "int64"), count, name="room")
        kept = e.emit("minimum", filled, room, name="kept")
        kept = e.emit("maximum", kept, const(0, "int64"), name="kept")
    else:
        # A loaded state may hold any number: the clamp keeps the rows inside the cache.
        used = e.emit("minimum", filled, const(length, "int64"), name="used")
        used = e.emit("maximum", used, const(0, "int64"), name="used")
        after = e.emit("add", used, count, name="needed")
        full = e.emit("greater", after, const(length, "int64"), name="full")
        kept = e.emit("where", full, const(window - 1, "int64"), used, name="kept")
        more = e.emit("subtract", used, kept, name="dropped")
        dropped = (e.emit("maximum", more, const(0, "int64"), name="dropped"),)
    past = e.emit("extent", kept, name="past", extent=rows)
    whole: Dim = rows + steps

    values: dict[Value, Value] = {params[rows.name]: past}
    if parts.mask is not None:
        mask = params[parts.mask]
        if not same_dim(mask.type.shape[1], whole):
            raise GraphError(f"'{mask.name}' is {mask.type}, not of {whole} tokens")
        one = Constant(np.ones((1, 1), mask.type.dtype))
        values[mask] = e.emit("broadcast_to", one, name="mask", shape=(1, whole))
    if parts.positions is not None:
        dtype, shape = params[parts.positions].type.dtype, params[parts.positions].type.shape
        rank = len(shape)  # [1, S], or [S]
        numbers: Value = Constant(np.arange(longest).reshape((1,) * (rank - 1) + (longest,)))
        if isinstance(steps, Symbol):
            part: dict[str, Any] = {"begin": (0,) * rank, "step": (1,) * rank, "shape": shape}
            numbers = e.emit("slice", numbers, name="numbers", **part)
        places = e.emit("add", numbers, position, name="positions")
        if dtype != "int64":
            places = e.emit("cast", places, name="positions", dtype=dtype)
        values[params[parts.positions]] = places

    body = rebuilt(_without(function, values), values, {})
    own = {p.name: p for p in body.params}
    grown = {c: Var(c.name, _with_rows(c.type, length, stored)) for c in caches}
    within: dict[Value, Var] = {own[c.name]: state for c, state in grown.items()}
    scales = {state: e.param(f"{state.name}.scale", _with_rows(state.type, length, SCALE, 1))
              for state in grown.values() if stored == BYTES}  # fmt: skip
    made: dict[Value, Value] = {}  # values of the model -> their replacements
    written: dict[Value, Var] = {}  # the returned values of the model -> the written caches
    scaled: list[tuple[Var, Var]] = []
    for binding in body.bindings:
        args = tuple(made.get(a, a) for a in binding.call.args)
        cache = _appended(binding, within)
        if cache is not None:
            (out,) = binding.outputs
            state, added, source = within[cache], args[1], binding.source
            if state in scales:
                added, factor = _in_bytes(e, added, source)
                scale = _append(e, scales[state], factor, past, dropped, source)
                scaled.append((scales[state], scale))
            written[out] = _append(e, state, added, past, dropped, source)
            made[out] = first = _first_rows(e, written[out], whole, out, source)
            if state in scales:
                factor = _first_rows(e, scale, whole, out, source)
                made[out] = e.emit("multiply", first, factor, name=out.name, source=source)
            continue
        early = next((a for a in args if a in within), None)
        if early is not None:
            raise GraphError(
                f"'{binding.source}' reads the cache '{early.name}' without the step's own rows",
                mend="a model that joins both (Concat) and reads what comes of it",
            )
        e.bindings.append(replace(binding, call=replace(binding.call, args=args)))

    outputs = dict(zip(body.output_names, body.outputs, strict=True))
    every = made.get(outputs[parts.logits], outputs[parts.logits])
    following = [(position, e.emit("add", position, count, name=f"{POSITION}.next"))]
    if window is not None:
        following.append((filled, e.emit("add", kept, count, name=f"{FILLED}.next")))
    for cache, name in caches.items():
        found = _source(body, outputs[name], written)
        if found not in written:
            what = f"output '{name}' is not the cache '{cache.name}' with the step's rows after it"
            raise GraphError(what)
        following.append((grown[cache], written[found]))
    taken = [p for p in body.params if p not in within]
    return decoder_of(e, function, taken, [*following, *scaled], every, own[parts.ids])


def decoder_of(
    e: Emitter, function: Function, taken: Sequence[Var], following: Sequence[tuple[Var, Var]],
    every: Value, ids: Var,
) -> Function:  # fmt: skip
    """The function of the inputs `taken` and of the states in `following`, each with its next
    value. It returns the last token's logits, a row of the logits `every`."""
    steps = ids.type.shape[1]
    assert isinstance(steps, Symbol | int)
    logits = e.emit("reshape", _last(e, every, steps), name=LOGITS, shape=every.type.shape[2:])
    token = e.emit("argmax", logits, name=TOKEN, axis=0, keepdims=False, last=False)
    likeliest = e.param(LIKELIEST, EXTENT)
    e.bindings = _reading(e, ids, likeliest)
    following = [(likeliest, token), *following]
    states = tuple((before.name, f"{before.name}.next") for before, _ in following)
    made = Function(
        name=function.name,
        params=(*taken, *(before for before, _ in following)),
        bindings=tuple(e.bindings),
        outputs=(logits, token, *(after for _, after in following)),
        output_names=(LOGITS, TOKEN, *(name for _, name in states)),
        states=states,
        extents=function.extents,
    )
    return _one_token_apart(last_rows(made), ids.name, steps)


def _reading(e: Emitter, ids: Var, likeliest: Var) -> list[Binding]:
    """The bindings of e, with a token below 0 read as the most likely of the step before."""
    known, e.bindings = e.bindings, []
    dtype = ids.type.dtype
    stands = e.emit("less", ids, Constant(np.array(0, dtype)), name="stands")
    given = _in_dtype(e, likeliest, dtype, LIKELIEST)
    read = e.emit("where", stands, given, ids, name="tokens")

    def of(value: Value) -> Value:
        return read if value is ids else value

    return [*e.bindings, *(replace(b, call=replace(b.call, args=tuple(map(of, b.call.args))))
                           for b in known)]  # fmt: skip


def _one_token_apart(function: Function, ids: str, steps: Dim) -> Function:
    """The function as a branch: a step of one token has its own body, made for one row. Both bodies
    share one memory and one copy of the weights."""
    if not isinstance(steps, Symbol):
        return function
    e = Emitter(function)
    count = next(p for p in function.params if p.name == steps.name)
    one = e.emit("equal", count, const(1, "int64"), name="one_token")

    def body(name: str, known: Mapping[Value, Value], dims: Mapping[Symbol, Dim]) -> Function:
        own = {p: Var(p.name, p.type) for p in function.params}
        inner = Emitter(function)
        values: dict[Value, Value] = {}
        values.update(own.items())
        values.update(known)
        if dims:
            first: dict[str, Any] = {"begin": (0, 0), "step": (1, 1), "shape": (1, 1)}
            given = next(p for p in function.params if p.name == ids)
            values[given] = inner.emit("slice", own[given], name="token_id", **first)
        made = rebuilt(replace(function, params=(), states=(), extents=()), values, dims)
        bindings = (*inner.bindings, *_sharing_weights(made.bindings))
        return replace(made, name=name, params=tuple(own.values()), bindings=bindings)

    bodies = body("one", {count: const(1, "int64")}, {steps: 1}), body("several", {}, {})
    outputs = tuple(Var(e.names.fresh(v.name), v.type) for v in function.outputs)
    branch = Binding(outputs, CallBranch(*bodies, (one, *function.params)), "step")
    return replace(function, bindings=(*e.bindings, branch), outputs=outputs)


def _sharing_weights(bindings: Sequence[Binding]) -> Iterator[Binding]:
    """A layer of one row takes the weights as packed for the layer of many rows."""
    known: set[Value] = set()  # values computed from constants only, such as weights of few bits

    def is_known(value: Value) -> bool:
        return isinstance(value, Constant) or value in known

    for binding in bindings:
        match binding.call:
            case Call("dense", (_, w), attrs) as call if is_known(w):
                yield replace(binding, call=replace(call, attrs={**attrs, SHARED: True}))
            case Call(args=args) if all(map(is_known, args)):
                known.update(binding.outputs)
                yield binding
            case _:
                yield binding


def _source(body: Function, value: Value, known: Collection[Value]) -> Value:
    """The value of `known` that an output shows, without the calls that only name its extents."""
    makers: dict[Value, AnyCall] = {b.outputs[0]: b.call for b in body.bindings}
    while value not in known:
        match makers.get(value):
            case Call("first" | "reshape", (x, *_)):
                value = x
            case _:
                break
    return value


def _without(function: Function, values: Mapping[Value, Value]) -> Function:
    """The function without the parameters that are computed, and without states."""
    return replace(function, params=tuple(p for p in function.params if p not in values), states=())


def _with_rows(t: TensorType, rows: int, stored: str, width: Dim | None = None) -> TensorType:
    batch, heads, _, own = t.shape
    return TensorType((batch, heads, rows, width or own), stored or t.dtype)


def _in_bytes(e: Emitter, rows: Value, source: str) -> tuple[Var, Var]:
    """(rows as int8, the scale of each row): the largest magnitude of a row becomes 127."""
    x = rows if rows.type.dtype == SCALE else e.emit("cast", rows, name="rows", dtype=SCALE)
    largest = e.emit("max", e.emit("abs", x, name="rows", source=source), name="largest",
                     source=source, axes=(3,), keepdims=True)  # fmt: skip
    by = Constant(np.array(1 / 127, SCALE))
    least = Constant(np.array(np.finfo(SCALE).tiny, SCALE))
    scale = e.emit("multiply", largest, by, name="scale", source=source)
    scale = e.emit("maximum", scale, least, name="scale", source=source)
    whole = e.emit("round", e.emit("divide", x, scale, name="rows", source=source), name="rows",
                   source=source)  # fmt: skip
    return e.emit("cast", whole, name="rows", source=source, dtype=BYTES), scale


def _appended(binding: Binding, caches: Mapping[Value, Var]) -> Value | None:
    """The cache to which a binding appends the rows of a step."""
    match binding.call:
        case Call("concatenate", (cache, _), attrs) if cache in caches and attrs["axis"] in (2, -2):
            return cache
    return None


def _append(
    e: Emitter, cache: Var, rows: Value, past: Value, dropped: Sequence[Value], source: str
) -> Var:
    _, heads, length, width = cache.type.shape
    count = rows.type.shape[2]
    flat = e.emit("reshape", cache, name=cache.name, source=source, shape=(heads, length, width))
    own = e.emit("reshape", rows, name="rows", source=source, shape=(heads, count, width))
    own = _in_dtype(e, own, cache.type.dtype, source)
    after = e.emit(
        "append_rows", flat, own, past, *dropped, name=f"{cache.name}.next", source=source,
        owned=False,
    )  # fmt: skip
    return e.emit("reshape", after, name=f"{cache.name}.next", source=source,
                  shape=cache.type.shape)  # fmt: skip


def _first_rows(e: Emitter, cache: Value, rows: Dim, like: Var, source: str) -> Var:
    """The rows in use, in the dtype that the model reads."""
    batch, heads, _, width = cache.type.shape
    found = e.emit("slice", cache, name=like.name, source=source, begin=(0, 0, 0, 0),
                   step=(1, 1, 1, 1), shape=(batch, heads, rows, width))  # fmt: skip
    return _in_dtype(e, found, like.type.dtype, source)


def _in_dtype(e: Emitter, x: Var, dtype: str, source: str) -> Var:
    same = x.type.dtype == dtype
    return x if same else e.emit("cast", x, name=x.name, source=source, dtype=dtype)


def _last(e: Emitter, logits: Value, steps: Dim) -> Value:
    """The logits of the last token, [1, 1, n]; some models give only these."""
    batch, rows, width = logits.type.shape
    if is_const(rows, 1):
        return logits
    assert same_dim(rows, steps), f"{logits.type} is not of {steps} tokens"
    return e.emit("slice", logits, name="last", begin=(0, steps - 1, 0), step=(1, 1, 1),
                  shape=(batch, 1, width))  # fmt: skip
