"""A decoder that reads what an encoder made: a text about something that was heard.

    hear(features) -> keys and values of each layer      tell(ids, keys and values, states) -> ...

The function of both takes features and tokens. The first step of a text, whose `position` is 0,
hears: the encoder runs, and the keys and values that the decoder's layers read of it become states.
Later steps read these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..errors import GraphError
from .bind import rebuilt
from .decoder import LOGITS, POSITION, TOKEN, Emitter
from .dims import same_type
from .eliminate import eliminate_dead_code
from .nodes import Binding, CallBranch, Constant, Function, Value, Var

NEVER = np.finfo(np.float32).min  # what is added to the logits of tokens that are never said


def hearing(
    hear: Function, tell: Function, heard: Mapping[str, str], silent: Sequence[int] = ()
) -> Function:
    """The function of both. heard: by the names of tell's inputs those of hear's outputs. silent:
    tokens that `token` never is. Raises GraphError where they do not fit."""
    made = dict(zip(hear.output_names, hear.outputs, strict=True))
    inputs = {p.name: p for p in tell.params}
    e = Emitter(replace(tell, params=(*hear.params, *tell.params)))
    for name, source in heard.items():
        if source not in made or not same_type(made[source].type, inputs[name].type):
            found = made[source].type if source in made else "nothing"
            raise GraphError(
                f"'{tell.name}' reads {inputs[name].type} as '{name}', and '{hear.name}' gives "
                f"{found}"
            )
    begins = e.emit("equal", inputs[POSITION], _number(0), name="begins")
    states = [inputs[name] for name in heard]

    def body(name: str, run: bool) -> Function:
        own = [Var(p.name, p.type) for p in (*hear.params, *states)]
        given: dict[Value, Value] = dict(zip(hear.params, own, strict=False))
        inner = rebuilt(replace(hear, params=()), given, {})
        results = dict(zip(inner.output_names, inner.outputs, strict=True))
        kept = own[len(hear.params) :]
        if not run:
            return Function(name, tuple(own), (), tuple(kept), tuple(heard))
        within = Emitter(replace(inner, params=tuple(own)))
        within.bindings += inner.bindings
        outputs = [
            _written(within, k, results[s]) for k, s in zip(kept, heard.values(), strict=True)
        ]
        return Function(name, tuple(own), tuple(within.bindings), tuple(outputs), tuple(heard))

    outputs = tuple(Var(e.names.fresh(f"{p.name}.next"), p.type) for p in states)
    call = CallBranch(body("hear", True), body("keep", False), (begins, *hear.params, *states))
    e.bindings.append(Binding(outputs, call, "hear"))
    known: dict[Value, Value] = dict(zip(states, outputs, strict=True))
    rest = tuple(p for p in tell.params if p not in known)
    told = rebuilt(replace(tell, params=()), known, {})
    e.bindings += told.bindings
    results: dict[str, Value] = dict(zip(told.output_names, told.outputs, strict=True))
    if silent:
        logits = results[LOGITS]
        added = np.zeros([n for n in logits.type.shape if isinstance(n, int)], logits.type.dtype)
        added[[*silent]] = NEVER
        said = e.emit("add", logits, Constant(added, "silent"), name="said")
        results[TOKEN] = e.emit("argmax", said, name=TOKEN, axis=0, keepdims=False, last=False)
    results |= {f"{name}.next": out for name, out in zip(heard, outputs, strict=True)}
    return replace(
        tell,
        params=(*hear.params, *rest, *states),
        bindings=tuple(e.bindings),
        outputs=tuple(results.values()),
        output_names=tuple(results),
        states=(*tell.states, *((name, f"{name}.next") for name in heard)),
    )


def giving(function: Function, outputs: Sequence[str]) -> Function:
    """The function of these outputs alone, and of the inputs that they need."""
    made = dict(zip(function.output_names, function.outputs, strict=True))
    values = tuple(made[name] for name in outputs)
    found = replace(function, outputs=values, output_names=tuple(outputs), states=(), extents=())
    found = eliminate_dead_code(found)
    read = {*found.outputs, *(a for b in found.bindings for a in b.call.args)}
    return replace(found, params=tuple(p for p in found.params if p in read))


def followed_by(first: Function, second: Function, given: Mapping[str, str]) -> Function:
    """second of what first gives. given: by the names of second's inputs those of first's
    outputs."""
    e = Emitter(first)
    e.bindings += first.bindings
    made = dict(zip(first.output_names, first.outputs, strict=True))
    values: dict[Value, Value] = {p: made[given[p.name]] for p in second.params}
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
    )


def _written(e: Emitter, state: Var, rows: Value) -> Var:
    """A state [1, H, L, D] that becomes `rows`, in its own memory: nothing copies it."""
    _, heads, length, width = state.type.shape
    flat = (heads, length, width)
    own, new = (e.emit("reshape", x, name=state.name, shape=flat) for x in (state, rows))
    after = e.emit("append_rows", own, new, _number(0), name=state.name, owned=False)
    return e.emit("reshape", after, name=state.name, shape=state.type.shape)


def _number(value: int) -> Constant:
    return Constant(np.array(value, np.int64))
