"""A decoder with caches of a fixed number of rows, as torch.export writes for transformers.

Such a model takes the tokens of a step and their positions. It writes their keys and values into
buffers, which are states already. A mask hides the rows after the text:

    logits = model(input_ids[1, S], cache_position[S])      states: caches [1, H, L, D]

Here it becomes a function of the tokens alone, as in `with_cache`: the number of tokens read so far
is a state, and gives the positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..errors import GraphError
from ..ir import Var as Symbol
from ..ir import is_const, same_shape
from .bind import rebuilt
from .decoder import POSITION, decoder_of
from .eliminate import eliminate_dead_code
from .emitter import Emitter
from .evaluate import evaluate
from .extents import EXTENT
from .nodes import AnyCall, Binding, Call, Constant, Function, Value, Var, const


def with_static_cache(function: Function, ids: str, positions: str) -> Function:
    """The decoder as a function of the tokens `ids`, without the input `positions`. Raises
    GraphError for a model that is no such decoder."""
    params = {p.name: p for p in function.params}
    places, tokens = params[positions], params[ids]
    steps = tokens.type.shape[1]
    if not isinstance(steps, Symbol) and not is_const(steps, 1):
        raise GraphError(
            f"'{function.name}' reads {steps} tokens at once, no more and no fewer",
            mend="a program exported with a dynamic length of its input, or of one token",
        )
    writes = _writes(function)
    if not writes:
        raise GraphError(
            f"'{function.name}' writes no rows into a cache that it keeps",
            mend="a module whose keys and values are buffers, which index_copy_ writes",
        )
    lengths = sorted(n for n in {b.call.args[0].type.shape[1] for b in writes} if type(n) is int)
    if len(lengths) != 1:
        raise GraphError(f"the caches of '{function.name}' have {lengths} rows, not one number")
    length = lengths[0]
    _refuse_other_places(function, writes, places, length)

    e = Emitter(function)
    position = e.param(POSITION, EXTENT)
    count: Value = params[steps.name] if isinstance(steps, Symbol) else const(steps, "int64")
    longest = dict(function.extents)[steps.name] if isinstance(steps, Symbol) else 1
    # A loaded state may hold any number: the clamp keeps the rows inside the cache.
    room = e.emit("subtract", const(length, "int64"), count, name="room")
    kept = e.emit("minimum", position, room, name="kept")
    kept = e.emit("maximum", kept, const(0, "int64"), name="kept")
    numbers: Value = Constant(np.arange(longest))
    if isinstance(steps, Symbol):
        numbers = e.emit("slice", numbers, name="numbers", begin=(0,), step=(1,), shape=(steps,))
    here: Value = e.emit("add", numbers, kept, name=positions)
    if places.type.dtype != "int64":
        here = e.emit("cast", here, name=positions, dtype=places.type.dtype)

    read = {a for b in function.bindings for a in b.call.args}
    states = [(b, a) for b, a in function.states if params[b] in read]
    unread = {before for before, _ in function.states} - {before for before, _ in states}
    body = rebuilt(
        replace(
            function,
            params=tuple(p for p in function.params if p is not places and p.name not in unread),
            states=(),
        ),
        {places: here},
        {},
    )
    written = {b.outputs[0].name for b in writes}
    for binding in body.bindings:
        if binding.outputs[0].name in written:
            cache, rows, *_ = binding.call.args
            binding = replace(binding, call=replace(binding.call, args=(cache, rows, kept)))
        e.bindings.append(binding)
    outputs = dict(zip(body.output_names, body.outputs, strict=True))
    own = {p.name: p for p in body.params}
    following = [(position, e.emit("add", position, count, name=f"{POSITION}.next"))]
    for before, name in states:
        after = outputs[name]
        assert isinstance(after, Var), f"{before} becomes {after}"
        following.append((own[before], after))
    kept_names = {before for before, _ in states}
    taken = [p for p in body.params if p.name not in kept_names]
    every = next(outputs[n] for n in body.output_names if n not in dict(function.states).values())
    return eliminate_dead_code(decoder_of(e, function, taken, following, every, own[ids]))


def _writes(function: Function) -> list[Binding]:
    return [b for b in function.bindings if isinstance(b.call, Call) and b.call.op == "append_rows"]


def _refuse_other_places(
    function: Function, writes: Sequence[Binding], places: Var, length: int
) -> None:
    """Raises GraphError if rows are written to other places than `places`. Checks this by two runs
    of the calls that compute the numbers of the rows."""
    makers = {b.outputs[0]: b.call for b in function.bindings}
    numbers = {f"{n}": _numbers(makers, b.call.args[2], places) for n, b in enumerate(writes)}
    computed = eliminate_dead_code(
        replace(function, outputs=tuple(numbers.values()), output_names=tuple(numbers), states=())
    )
    read = {a for b in computed.bindings for a in b.call.args} | {*computed.outputs}
    (count,) = places.type.shape
    assert isinstance(count, Symbol | int), f"{places} are {count}"
    inputs = tuple(p for p in function.params if p is places or p.name == str(count))
    others = [p.name for p in function.params if p in read and p not in inputs]
    longest = dict(function.extents)[count.name] if isinstance(count, Symbol) else count
    for first in () if others else (0, length - longest):
        given = np.arange(first, first + longest, dtype=places.type.dtype)
        made = evaluate(replace(computed, params=inputs), {places.name: given})
        others += [writes[int(n)].source for n, a in made.items() if not np.array_equal(a, given)]
    if others:
        raise GraphError(
            f"the rows that '{function.name}' writes into its caches are not those at "
            f"'{places.name}': '{others[0]}' decides them, too",
            mend=f"cache.index_copy_(2, {places.name}, rows)",
        )


def _numbers(makers: Mapping[Var, AnyCall], first: Value, places: Var) -> Value:
    """The numbers of the rows, one for each place. `first` is the first of them."""
    while isinstance(first, Var) and first in makers and not first.type.shape:
        (first, *_) = makers[first].args
    one = same_shape(places.type.shape, (1,)) or first not in makers
    return first if one else makers[first].args[0]  # type: ignore[index]
