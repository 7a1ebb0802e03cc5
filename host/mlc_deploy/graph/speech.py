"""Encoder and decoder in one function: the decoder writes a text about a sound.

    encoder(features) -> keys and values of each layer
    decoder(ids, keys and values, states) -> ...

The combined function takes features and tokens. In the first step of a text, with `position` 0, the
encoder runs, and its keys and values for the decoder's layers become states. Later steps read these
states.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..errors import GraphError
from ..ir import Dim
from ..ir import Var as Symbol
from ..ir.names import Names
from .bind import rebuilt
from .decoder import LIKELIEST, LOGITS, POSITION, TOKEN
from .dims import bound, fit, same_types, symbol
from .eliminate import eliminate_dead_code
from .emitter import Emitter
from .extents import EXTENT, largest, saying
from .nodes import Binding, CallBranch, Constant, Function, Value, Var, const

HEARD_ROWS = "heard_rows"  # a state: the number of key and value rows, if each sound decides it
NEVER = np.finfo(np.float32).min  # added to the logits of silent tokens


def with_encoder(
    encoder: Function, decoder: Function, sources: Mapping[str, str], silent: Sequence[int] = ()
) -> Function:
    """The combined function. sources: names of the decoder's inputs -> names of the encoder's
    outputs. The number of rows may be a dynamic extent; then the state `heard_rows`
    holds it. silent: tokens that are never chosen. Raises GraphError if both do not fit each other.
    """
    inputs = {p.name: p for p in decoder.params}
    encoder = apart(encoder, [*inputs, *dict(decoder.extents)])
    made = dict(zip(encoder.output_names, encoder.outputs, strict=True))
    rows = _fitting(encoder, decoder, sources)
    e = Emitter(replace(decoder, params=(*encoder.params, *decoder.params)))
    begins = e.emit("equal", inputs[POSITION], const(0, "int64"), name="begins")
    most = dict(encoder.extents)
    states = [Var(name, largest(made[source].type, most)) for name, source in sources.items()]
    states += [Var(HEARD_ROWS, EXTENT)] if rows else []

    def body(name: str, run: bool) -> Function:
        own = [Var(p.name, p.type) for p in (*encoder.params, *states)]
        given: dict[Value, Value] = dict(zip(encoder.params, own, strict=False))
        inner = rebuilt(replace(encoder, params=(), extents=()), given, {})
        results = dict(zip(inner.output_names, inner.outputs, strict=True))
        kept = own[len(encoder.params) :]
        names = tuple(state.name for state in states)
        if not run:
            return Function(name, tuple(own), (), tuple(kept), names)
        within = Emitter(replace(inner, params=tuple(own)))
        within.bindings += inner.bindings
        outputs: list[Value] = [
            _written(within, k, results[s]) for k, s in zip(kept, sources.values(), strict=False)
        ]
        outputs += [saying(replace(inner, params=tuple(own)), rows[1])] if rows else []
        return Function(name, tuple(own), tuple(within.bindings), tuple(outputs), names)

    outputs = tuple(Var(e.names.fresh(f"{p.name}.next"), p.type) for p in states)
    call = CallBranch(body("hear", True), body("keep", False), (begins, *encoder.params, *states))
    e.bindings.append(Binding(outputs, call, "hear"))
    known: dict[Value, Value] = {inputs[n]: o for n, o in zip(sources, outputs, strict=False)}
    if rows:
        extent, given = rows
        top = min(dict(decoder.extents)[extent.name], most[given.name])
        # A loaded state may hold any number: the clamp keeps the rows inside the states.
        count = e.emit("minimum", outputs[-1], const(top, "int64"), name=extent.name)
        count = e.emit("maximum", count, const(0, "int64"), name=extent.name)
        count = e.emit("extent", count, name=extent.name, extent=extent)
        known = {own: _first_rows(e, own, state) for own, state in known.items()}
        known[inputs[extent.name]] = count
    rest = tuple(p for p in decoder.params if p not in known)
    decoded = rebuilt(replace(decoder, params=()), known, {})
    e.bindings += decoded.bindings
    results: dict[str, Value] = dict(zip(decoded.output_names, decoded.outputs, strict=True))
    if silent:
        logits = results[LOGITS]
        added = np.zeros([n for n in logits.type.shape if isinstance(n, int)], logits.type.dtype)
        added[[*silent]] = NEVER
        audible = e.emit("add", logits, Constant(added, "silent"), name="said")
        results[TOKEN] = e.emit("argmax", audible, name=TOKEN, axis=0, keepdims=False, last=False)
        results[f"{LIKELIEST}.next"] = results[TOKEN]
    after = {state.name: out for state, out in zip(states, outputs, strict=True)}
    results |= {f"{name}.next": out for name, out in after.items()}
    return replace(
        decoder,
        params=(*encoder.params, *rest, *states),
        bindings=tuple(e.bindings),
        outputs=tuple(results.values()),
        output_names=tuple(results),
        states=(*decoder.states, *((name, f"{name}.next") for name in after)),
        extents=(*encoder.extents, *decoder.extents),
    )


def _fitting(
    encoder: Function, decoder: Function, sources: Mapping[str, str]
) -> tuple[Symbol, Symbol] | None:
    """The extent of the rows in the decoder, and in the encoder; None if it is a known number.
    Raises GraphError if the encoder's outputs do not fit the decoder's inputs."""
    made = dict(zip(encoder.output_names, encoder.outputs, strict=True))
    inputs = {p.name: p.type for p in decoder.params}
    rows: dict[Symbol, Dim] = {}
    for name, source in sources.items():
        found = [made[source].type] if source in made else []
        own, misfit = fit([inputs[name]], found)
        rows = own | rows
        fits = misfit is None and same_types([bound(inputs[name], rows)], found)
        if not fits or len(rows) > 1:
            raise GraphError(
                f"'{decoder.name}' reads {inputs[name]} as '{name}', and '{encoder.name}' gives "
                f"{found[0] if found else 'nothing'}"
            )
    ((extent, given),) = rows.items() or ((None, None),)
    return (extent, given) if extent is not None and isinstance(given, Symbol) else None


def giving(function: Function, outputs: Sequence[str]) -> Function:
    """The function with only these outputs, and the inputs that they need."""
    made = dict(zip(function.output_names, function.outputs, strict=True))
    values = tuple(made[name] for name in outputs)
    found = replace(function, outputs=values, output_names=tuple(outputs), states=())
    found = eliminate_dead_code(found)
    read = {*found.outputs, *(a for b in found.bindings for a in b.call.args)}
    kept = [p for p in found.params if p in read or p.name in dict(function.extents)]
    return replace(found, params=tuple(kept))


def followed_by(first: Function, second: Function, given: Mapping[str, str]) -> Function:
    """second applied to outputs of first. given: names of second's inputs -> names of first's
    outputs."""
    second = apart(second, [*(p.name for p in first.params), *dict(first.extents)])
    made = dict(zip(first.output_names, first.outputs, strict=True))
    values: dict[Value, Value] = {p: made[given[p.name]] for p in second.params if p.name in given}
    dims, _ = fit([p.type for p in values], [v.type for v in values.values()])
    for extent, size in dims.items():
        assert isinstance(size, Symbol), f"'{extent}' is {size}"
        values |= {p: saying(first, size) for p in second.params if p.name == extent.name}
    second = rebuilt(replace(second, params=()), {}, dims)
    e = Emitter(first)
    e.bindings += first.bindings
    for binding in second.bindings:
        outputs = tuple(Var(e.names.fresh(v.name), v.type) for v in binding.outputs)
        args = tuple(values.get(a, a) for a in binding.call.args)
        e.bindings.append(replace(binding, outputs=outputs, call=replace(binding.call, args=args)))
        values.update(zip(binding.outputs, outputs, strict=True))
    return replace(
        first,
        bindings=tuple(e.bindings),
        outputs=tuple(values.get(v, v) for v in second.outputs),
        output_names=second.output_names,
        extents=(*first.extents, *((n, m) for n, m in second.extents if symbol(n) not in dims)),
    )


def apart(function: Function, taken: Collection[str]) -> Function:
    """The function with extents renamed if their names are in `taken`."""
    names = Names([*taken, *(p.name for p in function.params), *dict(function.extents)])
    others = {name: names.fresh(name) for name, _ in function.extents if name in taken}
    if not others:
        return function
    dims: dict[Symbol, Dim] = {symbol(name): symbol(other) for name, other in others.items()}
    params = [Var(others.get(p.name, p.name), bound(p.type, dims)) for p in function.params]
    values: dict[Value, Value] = dict(zip(function.params, params, strict=True))
    made = rebuilt(replace(function, params=()), values, dims)
    return replace(
        made,
        params=tuple(params),
        output_names=tuple(others.get(name, name) for name in made.output_names),
        extents=tuple((others.get(name, name), most) for name, most in function.extents),
    )


def _first_rows(e: Emitter, own: Value, state: Value) -> Var:
    """The heard rows of a state [1, H, L, D], in the shape that the decoder reads."""
    return e.emit(
        "slice", state, name=own.name, begin=(0,) * 4, step=(1,) * 4, shape=own.type.shape
    )


def _written(e: Emitter, state: Var, rows: Value) -> Var:
    """A state [1, H, L, D] that begins with `rows`, written in place: nothing copies the state."""
    own = e.emit("reshape", state, name=state.name, shape=state.type.shape[1:])
    new = e.emit("reshape", rows, name=state.name, shape=rows.type.shape[1:])
    after = e.emit("append_rows", own, new, const(0, "int64"), name=state.name, owned=False)
    return e.emit("reshape", after, name=state.name, shape=state.type.shape)
