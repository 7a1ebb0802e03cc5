"""A decoder that writes by itself: the program has the loop and the choice of each token.

A decoder of graph/decoder.py reads tokens. Here it goes on after them. It chooses a token from the
logits. While more tokens are wanted and the last one ends nothing, an iteration of a loop reads the
last token and chooses the next. The loop's body is the step of one token. Caches stay in place.

Inputs besides the tokens: WANTED, the number of tokens to write (0: only read), ENDS, the tokens
that end the text, and the way to choose (Choice). Outputs: FIRST and REST, the chosen tokens, and
WRITTEN, their number with the ending one. The last token is not read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..ops import TensorType
from .bind import rebuilt
from .builder import BlockBuilder
from .control import TRUTH, TURN
from .decoder import LOGITS, TOKEN
from .emitter import Emitter
from .extents import EXTENT
from .nodes import Binding, CallBranch, CallLoop, Function, Value, Var, const

WANTED, ENDS, TEMPERATURE, TOP_K, TOP_P = "wanted", "ends", "temperature", "top_k", "top_p"
DRAW, DRAWS = "draw", "draws"
FIRST, REST, WRITTEN = "first", "rest", "written"
MOST_ENDS = 16  # tokens that end a text
NO_TOKEN = -1  # fills up unused places of ENDS
COUNT, FLOAT, DOUBLE = (TensorType((), t) for t in ("int64", "float32", "float64"))
OWN = "loop"  # the source of the loop's own calls


@dataclass(frozen=True, slots=True)
class Choice:
    """The settings for choosing tokens: values of the program, named as its inputs. temperature 0
    takes the most likely token. draw (for the first token) and draws (for the others) are numbers
    from 0 to 1: the share of all likelihoods before the chosen token, in order of token numbers."""

    temperature: Value
    top_k: Value
    top_p: Value
    draw: Value


def with_loop(function: Function, ids: str, most: int) -> Function:
    """A decoder (graph/decoder.py) that writes up to `most` tokens in one run."""
    e = Emitter(function)
    wanted, ends = e.param(WANTED, COUNT), e.param(ENDS, TensorType((MOST_ENDS,), "int64"))
    choice = (e.param(TEMPERATURE, FLOAT), e.param(TOP_K, COUNT), e.param(TOP_P, FLOAT),
              e.param(DRAW, DOUBLE))  # fmt: skip
    how = Choice(*choice)
    draws = e.param(DRAWS, TensorType((most - 1,), "float64"))
    draws_any = e.emit("greater", how.temperature, const(0.0), name="draws_any")
    given = dict(zip(function.output_names, function.outputs, strict=True))
    first = _chosen(e, given[TOKEN], given[LOGITS], how, draws_any, FIRST)
    going = e.emit("greater", wanted, const(1, "int64"), name="more")
    going = e.emit("logical_and", going, _goes_on(e, first, ends), name="going")

    states = [given[after] for _, after in function.states]
    held = (wanted, ends, how.temperature, how.top_k, how.top_p, draws_any)
    body = _turn(function, ids, [v.type for v in held])
    args = (going, first, const(1, "int64"), *states, draws, *held)
    loop = CallLoop(body, args, most - 1, 3 + len(states), (False,), (False,), conditional=True)
    names = ("going.last", "token.last", WRITTEN, *(f"{v.name}.written" for v in states), REST)
    types = (*(p.type for p in body.params[1 : 4 + len(states)]), TensorType((most - 1,), "int64"))
    made = tuple(Var(e.names.fresh(n), t) for n, t in zip(names, types, strict=True))
    outputs: dict[str, Value] = {
        LOGITS: given[LOGITS], TOKEN: given[TOKEN], FIRST: first, REST: made[-1], WRITTEN: made[2],
        **{after: v for (_, after), v in zip(function.states, made[3:], strict=False)},
    }  # fmt: skip
    own = (wanted, ends, *choice, draws)
    inputs = [p for p in function.params if p.name not in dict(function.states)]
    kept = [p for p in function.params if p.name in dict(function.states)]
    return replace(
        function,
        params=(*inputs, *own, *kept),
        bindings=(*function.bindings, *e.bindings, Binding(made, loop, "write")),
        outputs=tuple(outputs.values()),
        output_names=tuple(outputs),
    )


def _turn(function: Function, ids: str, held: list[TensorType]) -> Function:
    """The body of the loop: it reads the last token and chooses the next."""
    one = _step_of_one(function)
    e = Emitter(one)
    turn, going, token, count = (
        e.param(n, t)
        for n, t in (("turn", TURN), ("going", TRUTH), ("token.before", COUNT), ("count", COUNT))
    )
    before = [next(p for p in one.params if p.name == name) for name, _ in function.states]
    states = [e.param(f"{p.name}.before", p.type) for p in before]
    draw = e.param(DRAW, DOUBLE)
    names = (WANTED, ENDS, TEMPERATURE, TOP_K, TOP_P, "draws_any")
    wanted, ends, temperature, top_k, top_p, draws_any = (
        e.param(n, t) for n, t in zip(names, held, strict=True)
    )
    taken = next(p for p in one.params if p.name == ids)
    read: Value = token
    if taken.type.dtype != "int64":
        read = e.emit("cast", read, name="token_id", source=OWN,
                      dtype=taken.type.dtype)  # fmt: skip
    read = e.emit("reshape", read, name="token_id", source=OWN, shape=(1, 1))
    values: dict[Value, Value] = dict(zip(before, states, strict=True))
    values[taken] = read
    values |= {p: const(1, "int64") for p in one.params if p not in values and p.type == EXTENT}
    inner = rebuilt(replace(one, params=(), states=(), extents=()), values, {})
    e.bindings += inner.bindings
    given = dict(zip(function.output_names, inner.outputs, strict=True))
    how = Choice(temperature, top_k, top_p, draw)
    following = _chosen(e, given[TOKEN], given[LOGITS], how, draws_any, "following")
    after = e.emit("add", count, const(1, "int64"), name="count.next", source=OWN)
    more = e.emit("less", after, wanted, name="more", source=OWN)
    more = e.emit("logical_and", more, _goes_on(e, following, ends), name="going.next", source=OWN)
    every = (more, following, after, *(given[name] for _, name in function.states), following)
    return Function(
        name="write",
        params=(turn, going, token, count, *states, draw, wanted, ends, temperature, top_k, top_p,
                draws_any),
        bindings=tuple(e.bindings),
        outputs=every,
        output_names=tuple(f"y{n}" for n in range(len(every))),
    )  # fmt: skip


def _step_of_one(function: Function) -> Function:
    """The body for a step of one token; the whole function if it reads only one at a time."""
    match function.bindings[-1].call:
        case CallBranch(then) as branch if function.bindings[-1].outputs == function.outputs:
            assert branch.args[1:] == function.params
            return then
    return function


def _goes_on(e: Emitter, token: Value, ends: Value) -> Value:
    """bool[]: the token is not among the ends."""
    same = e.emit("equal", ends, token, name="same", source=OWN)
    same = e.emit("cast", same, name="same", source=OWN, dtype="int32")
    found = e.emit("max", same, name="found", source=OWN, axes=(0,), keepdims=False)
    return e.emit("equal", found, const(0, "int32"), name="goes_on", source=OWN)


def _chosen(
    e: Emitter, token: Value, logits: Value, how: Choice, draws_any: Value, name: str
) -> Var:
    """The most likely token, or a sampled one."""
    args = (token, logits, how.temperature, how.top_k, how.top_p, how.draw)
    types = [v.type for v in args]
    out = Var(e.names.fresh(name), COUNT)
    branch = CallBranch(_drawn(types), _likeliest(types), (draws_any, *args))
    e.bindings.append(Binding((out,), branch, OWN))
    return out


def _likeliest(types: list[TensorType]) -> Function:
    params = tuple(Var(f"x{n}", t) for n, t in enumerate(types))
    return Function("likeliest", params, (), params[:1], ("y",))


def _drawn(types: list[TensorType]) -> Function:
    """The token sampled by a given number (ops/draw.py)."""
    bb = BlockBuilder("drawn")
    names = ("token", "logits", "temperature", "top_k", "top_p", "draw")
    _, *given = (bb.param(n, t.shape, t.dtype) for n, t in zip(names, types, strict=True))
    return bb.finish([bb.emit("draw_token", *given)], ["y"])
