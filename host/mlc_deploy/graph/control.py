"""Loops and branches: their types, their evaluation, and the removal of unused parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import compress

import numpy as np

from ..ir import Dim
from ..ops import Array, TensorType
from ..passes.context import optional
from .dims import same_dim, same_types
from .nodes import (
    Binding,
    CallBranch,
    CallLoop,
    Constant,
    Function,
    Value,
    bodies,
    uses,
    with_bindings,
    with_values,
)

TURN = TensorType((), "int64")  # the number of a loop's iteration
TRUTH = TensorType((), "bool")

Run = Callable[[Function, Sequence[Array]], Sequence[Array]]


def given_types(call: CallLoop | CallBranch) -> tuple[TensorType, ...]:
    """The types of the outputs. Raises ValueError if a body does not fit the arguments."""
    match call:
        case CallLoop():
            return _of_loop(call)
        case CallBranch():
            return _of_branch(call)


def _of_loop(loop: CallLoop) -> tuple[TensorType, ...]:
    args = [a.type for a in loop.args]
    count = loop.states + len(loop.read)
    if not 0 <= loop.states <= count <= len(args):
        raise ValueError(f"the loop has {len(args)} arguments, for {count} states and sequences")
    if isinstance(loop.turns, int) and loop.turns < 0:
        raise ValueError(f"the loop has {loop.turns} iterations")
    states, read, others = args[: loop.states], args[loop.states : count], args[count:]
    for t in read:
        if not t.shape or not same_dim(t.shape[0], loop.turns):
            raise ValueError(f"a sequence that {loop.turns} iterations read is {t}")
    seen = [TURN, *states, *map(element, read), *others]
    taken = [p.type for p in loop.body.params]
    if not same_types(taken, seen):
        raise ValueError(f"the body takes {listed(taken)}, not {listed(seen)}")
    given = [v.type for v in loop.body.outputs]
    after, results = given[: loop.states], given[loop.states :]
    if not same_types(after, states) or len(results) != len(loop.written):
        what = f"{listed(states)} and {len(loop.written)} results"
        raise ValueError(f"the body gives {listed(given)}, not {what}")
    if loop.conditional and states[:1] != [TRUTH]:
        raise ValueError(f"a loop ends by its first state, {TRUTH}")
    if loop.counted and args[count:][-1:] != [TURN]:
        raise ValueError(f"the last argument of a loop that is counted is {TURN}")
    return (*states, *(sequence(t, loop.turns) for t in results))


def _of_branch(branch: CallBranch) -> tuple[TensorType, ...]:
    condition, *args = (a.type for a in branch.args)
    if condition != TRUTH:
        raise ValueError(f"the condition is {condition}, not {TRUTH}")
    for function in (branch.then, branch.otherwise):
        taken = [p.type for p in function.params]
        if not same_types(taken, args):
            raise ValueError(f"'{function.name}' takes {listed(taken)}, not {listed(args)}")
    one, other = (tuple(v.type for v in f.outputs) for f in (branch.then, branch.otherwise))
    if not same_types(one, other):
        raise ValueError(f"one branch gives {listed(one)}, the other one {listed(other)}")
    return one


def element(t: TensorType) -> TensorType:
    """The type of a sequence's element, which one iteration reads."""
    return TensorType(t.shape[1:], t.dtype)


def sequence(t: TensorType, turns: Dim) -> TensorType:
    """The type of the sequence that a loop makes of elements."""
    return TensorType((turns, *t.shape), t.dtype)


def listed(types: Sequence[TensorType]) -> str:
    return ", ".join(map(str, types)) or "nothing"


# -------------------------------------------------------------------------------------- evaluation


def run_loop(
    loop: CallLoop, args: Sequence[Array], types: Sequence[TensorType], run: Run
) -> tuple[Array, ...]:
    """The outputs of a loop, with these types. run computes the body. `turns` must be known."""
    assert isinstance(loop.turns, int)
    count = loop.states + len(loop.read)
    states, read, others = list(args[: loop.states]), args[loop.states : count], args[count:]
    elements: list[Sequence[Array]] = []
    for turn in range(loop.turns):
        if loop.conditional and not states[0]:
            break
        seen = [
            x[loop.turns - 1 - turn if back else turn]
            for x, back in zip(read, loop.read, strict=True)
        ]
        given = run(loop.body, [np.asarray(turn, np.int64), *states, *seen, *others])
        states = list(given[: loop.states])
        elements.append(given[loop.states :])
    results = []
    for number, back in enumerate(loop.written):
        t = types[loop.states + number]
        result = np.zeros(t.sizes, t.dtype)
        for turn, given in enumerate(elements):
            result[loop.turns - 1 - turn if back else turn] = given[number]
        results.append(result)
    return (*states, *results)


def run_branch(branch: CallBranch, args: Sequence[Array], run: Run) -> tuple[Array, ...]:
    """The outputs of a branch. run computes the body that is taken."""
    return tuple(run(branch.then if args[0] else branch.otherwise, args[1:]))


# --------------------------------------------------------------------------------------- constants


@optional(level=1)
def constants_into_bodies(function: Function) -> Function:
    """loop(body, x, w), branch(c, body, w)   =>   the body holds the constant w, where every
    iteration sees it whole"""
    return with_bindings(function, list(map(_holding_constants, function.bindings)))


def _holding_constants(binding: Binding) -> Binding:
    match binding.call:
        case CallLoop(body) as loop:
            first = loop.states + len(loop.read)
            args, held = _split(loop.args, first)
            if not held:
                return binding
            call: CallLoop | CallBranch = replace(loop, body=_with(body, held, 1), args=args)
        case CallBranch() as branch:
            args, held = _split(branch.args, 1)
            if not held:
                return binding
            then, otherwise = (_with(f, held, -1) for f in bodies(branch))
            call = CallBranch(then, otherwise, args)
        case _:
            return binding
    return replace(binding, call=call)


def _split(args: tuple[Value, ...], first: int) -> tuple[tuple[Value, ...], dict[int, Constant]]:
    """(arguments without the constants from `first` on, these constants by argument number)."""
    held = {n: a for n, a in enumerate(args) if n >= first and isinstance(a, Constant)}
    return tuple(a for n, a in enumerate(args) if n not in held), held


def _with(body: Function, held: Mapping[int, Constant], offset: int) -> Function:
    """A body that holds these constant arguments. Argument n is its parameter n + offset."""
    values: dict[Value, Value] = {body.params[n + offset]: c for n, c in held.items()}
    params = tuple(p for p in body.params if p not in values)
    return replace(with_values(body, values), params=params)


# ------------------------------------------------------------------------------------ unused parts


def trimmed(binding: Binding, needed: Collection[Value]) -> Binding:
    """A loop or branch without unused results, and without arguments that no body reads. Other
    bindings stay as they are."""
    match binding.call:
        case CallLoop() as loop:
            return _trimmed_loop(binding, loop, needed)
        case CallBranch() as branch:
            return _trimmed_branch(binding, branch, needed)
    return binding


def _trimmed_loop(binding: Binding, loop: CallLoop, needed: Collection[Value]) -> Binding:
    """States stay: the next iteration reads them."""
    own, count = loop.states, loop.states + len(loop.read)
    kept = [out in needed for out in binding.outputs[own:]]
    body = _giving(loop.body, [True] * own + kept)
    read = uses(body)
    seen = [read[p] > 0 for p in body.params[1 + own :]]
    if all(kept) and all(seen):
        return binding
    body = replace(body, params=(*body.params[: 1 + own], *compress(body.params[1 + own :], seen)))
    trimmed = replace(
        loop,
        body=body,
        args=(*loop.args[:own], *compress(loop.args[own:], seen)),
        read=tuple(compress(loop.read, seen[: count - own])),
        written=tuple(compress(loop.written, kept)),
    )
    outputs = (*binding.outputs[:own], *compress(binding.outputs[own:], kept))
    return replace(binding, outputs=outputs, call=trimmed)


def _trimmed_branch(binding: Binding, branch: CallBranch, needed: Collection[Value]) -> Binding:
    kept = [out in needed for out in binding.outputs]
    taken = [_giving(f, kept) for f in bodies(branch)]
    read = [uses(f) for f in taken]
    seen = [
        any(counts[p] > 0 for counts, p in zip(read, params, strict=True))
        for params in zip(*(f.params for f in taken), strict=True)
    ]
    if all(kept) and all(seen):
        return binding
    then, otherwise = (replace(f, params=tuple(compress(f.params, seen))) for f in taken)
    args = (branch.args[0], *compress(branch.args[1:], seen))
    return replace(
        binding,
        outputs=tuple(compress(binding.outputs, kept)),
        call=CallBranch(then, otherwise, args),
    )


def _giving(function: Function, kept: Sequence[bool]) -> Function:
    """A function with only the outputs marked in `kept`."""
    outputs = tuple(compress(function.outputs, kept))
    names = tuple(compress(function.output_names, kept))
    return replace(function, outputs=outputs, output_names=names)
