"""States: values that a model passes from one run to the next.

A state is an input, and the output that holds its value for the next run. On the board both are one
tensor, which is updated in place and outlives the run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches

from ..errors import GraphError
from .dims import same_type
from .nodes import Function, Var

# Words in names that mark the input of a state, its output, and either of them.
BEFORE = frozenset({"in", "input", "last", "old", "past", "prev", "previous"})
AFTER = frozenset({"n", "new", "next", "out", "output", "present", "updated"})
KEPT = frozenset(
    "c cache carry cell context cx gru h hidden hx k key keys kv lstm mem memory rnn state states v"
    " value values".split()
)
WORD = re.compile(r"[a-z]+|[0-9]+")


def with_states(function: Function, states: Mapping[str, str]) -> Function:
    """function with these states: names of inputs -> names of the outputs that hold their next
    values. Raises GraphError for unknown names, and if the types of a pair differ."""
    params = {p.name: p.type for p in function.params}
    outputs = {n: v.type for n, v in zip(function.output_names, function.outputs, strict=True)}
    for before, after in states.items():
        for kind, name, known in (("input", before, params), ("output", after, outputs)):
            if name not in known:
                near = get_close_matches(name, known, 3, 0.5) or list(known)[:5]
                raise GraphError(
                    f"a state cannot begin with '{before}' and end with '{after}': "
                    f"'{function.name}' has no {kind} '{name}'",
                    mend=", ".join(near),
                )
        if not same_type(params[before], outputs[after]):
            raise GraphError(
                f"input '{before}' is {params[before]}, and output '{after}' is {outputs[after]}: "
                "they do not form a state",
                mend="a pair of one shape and one dtype",
            )
        if list(states.values()).count(after) > 1:
            raise GraphError(f"output '{after}' is the end of two states", mend="one of them")
    return replace(function, states=tuple(states.items()))


def stateful(function: Function, states: Mapping[str, str] | None) -> Function:
    """function with the given states. For None: its own states, or else the states found by name.
    Raises GraphError."""
    if states is None:
        return function if function.states else with_states(function, states_by_name(function))
    return with_states(function, states)


def states_by_name(function: Function) -> dict[str, str]:
    """The pairs of inputs and outputs that are states by their names and types: h_in and h_out,
    state and stateN, past.0.key and present.0.key. If all inputs would be states, none is: the
    model would have no input."""
    outputs = dict(zip(function.output_names, function.outputs, strict=True))
    ends: dict[tuple[str, ...], list[str]] = {}
    for name in outputs:
        ends.setdefault(words_of(name, AFTER), []).append(name)
    found: dict[str, str] = {}
    for param in function.params:
        words = words_of(param.name, BEFORE)
        candidates = ends.get(words, [])
        if not KEPT.intersection(words) or len(candidates) != 1 or candidates[0] == param.name:
            continue
        (after,) = candidates
        if same_type(param.type, outputs[after].type) and after not in found.values():
            found[param.name] = after
    return found if len(found) < len(function.params) else {}


def state_outputs(function: Function) -> dict[int, Var]:
    """The numbers of the outputs that hold next values, each with the parameter."""
    params = {p.name: p for p in function.params}
    after = {name: n for n, name in enumerate(function.output_names)}
    return {after[end]: params[begin] for begin, end in function.states}


def words_of(name: str, direction: frozenset[str]) -> tuple[str, ...]:
    """The words of a name without the words of `direction`."""
    text = name.replace("past_key_values", "past")
    text = re.sub(r"(?<=[a-z])N\b", "_n", text)
    text = re.sub(r"\b([hc])n\b", r"\1_n", text)
    return tuple(w for w in WORD.findall(text.lower()) if w not in direction)
