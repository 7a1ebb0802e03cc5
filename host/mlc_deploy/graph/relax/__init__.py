"""The operators of Relax by TVM's names and signatures, made of the graph's own operators.

    relax.emitted(builder, "nn.conv2d", (x, w), {"padding": 1})    emits calls, and returns the last
    bb.emit(relax.op.nn.conv2d(x, w, padding=1))                   the same, of a Word

A word is a function of a builder and of TVM's arguments. It emits calls and returns the last one,
which the caller emits under a name of its own; or a value; or a tuple of both.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from ...ops import OPERATORS, frozen_attrs
from ..nodes import AnyCall, Call, Value
from . import elementwise, images, layers, reductions, shapes
from .parts import Emits, refused

WORDS: Mapping[str, Callable[..., Any]] = {
    **elementwise.table(),
    **reductions.table(),
    **shapes.table(),
    **layers.table(),
    **images.table(),
}
GROUPS = frozenset(word.partition(".")[0] for word in WORDS if "." in word)

_NO_OBJECTS = "a graph holds tensors, and values of other kinds live in Python"
_NO_VM = "memory and calls are planned when a model is compiled"
_NO_TRAINING = "a model here is not trained"
_ONE_BOARD = "a model runs on one board"
# TVM's words without a meaning here: why, and what to write instead.
REFUSED: Mapping[str, tuple[str, str]] = {
    "assert_op": ("a kernel has no assertions", "arguments are checked when a model is called"),
    "builtin": (_NO_VM, "leave it out"),
    "call_builtin_with_ctx": (_NO_VM, "R.call_dps_packed"),
    "call_inplace_packed": ("values of the graph are never overwritten", "R.call_dps_packed"),
    "call_tir_inplace": ("values of the graph are never overwritten", "R.call_tir"),
    "call_tir_with_grad": (_NO_TRAINING, "R.call_tir"),
    "ccl": (_ONE_BOARD, "leave it out"),
    "dist": (_ONE_BOARD, "leave it out"),
    "emit_te": ("a script is not run, so that it calls no Python", "bb.emit_te of a BlockBuilder"),
    "grad": (_NO_TRAINING, "leave it out"),
    "invoke_closure": ("a function is called by its name", "cls.f(x)"),
    "invoke_pure_closure": ("a function is called by its name", "cls.f(x)"),
    "layout_transform": (
        "layouts are chosen when a model is compiled",
        "R.reshape and R.permute_dims",
    ),
    "make_closure": ("a function is called by its name", "cls.f(x)"),
    "memory": (_NO_VM, "leave it out"),
    "multinomial_from_uniform": ("there is no such operator", "an ONNX model with Multinomial"),
    "null_value": (_NO_OBJECTS, "leave it out"),
    "print": ("a kernel prints nothing", "session.module.run(..., observe=) shows each layer"),
    "tensor_to_shape": ("shapes are known when a model is compiled", "R.shape([n, 16])"),
    "vm": (_NO_VM, "leave it out"),
}


def refusal(word: str) -> tuple[str, str] | None:
    """Why TVM's word has no meaning here and what to write, or None."""
    return REFUSED.get(word) or REFUSED.get(word.partition(".")[0])


@dataclass(frozen=True, slots=True)
class Word:
    """A call of a word, which a builder resolves: it may become several calls."""

    word: str
    args: tuple[Any, ...]
    attrs: tuple[tuple[str, Any], ...] = ()


def is_own(word: str, args: Sequence[Any], attrs: Mapping[str, Any]) -> bool:
    """Whether a call means the graph's operator of this name rather than TVM's word: it gives
    attributes that only the operator has."""
    if word not in OPERATORS:
        return False
    if word not in WORDS:
        return True
    takes = list(inspect.signature(WORDS[word]).parameters)[1:]
    names = set(attrs) - set(takes)
    own_only = bool(names) and all(isinstance(a, Value) for a in args)
    return own_only or (word == "clip" and len(args) == 1)


def emitted(builder: Emits, word: str, args: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """What a word makes of TVM's arguments. Raises GraphError and ValueError."""
    if is_own(word, args, attrs):
        for at, arg in enumerate(args, 1):
            if not isinstance(arg, Value):
                what = f"argument {at} of R.{word} is {arg}, which is not a value of the graph"
                raise refused(what, 'R.const(1.0, "float32") for numbers, name=value for others')
        return Call(word, tuple(args), frozen_attrs(attrs))
    function = WORDS[word]
    signature = inspect.signature(function)
    taken = list(signature.parameters.values())[1:]
    own = signature.replace(parameters=taken)
    try:
        bound = own.bind(*args, **attrs)
    except TypeError as error:
        raise refused(f"R.{word}: {error}", f"R.{word}({_takes(taken)})") from None
    return function(builder, *bound.args, **bound.kwargs)


def _takes(parameters: Sequence[inspect.Parameter]) -> str:
    def text(p: inspect.Parameter) -> str:
        return p.name if p.default is p.empty else f"{p.name}={p.default!r}"

    return ", ".join(map(text, parameters))


class _Words:
    """Words as functions: `op.nn.relu(x)` is a Word."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        word = f"{self._prefix}{name}"
        if word in WORDS or word in OPERATORS:
            return lambda *args, **attrs: made(word, args, attrs)
        if word in GROUPS:
            return _Words(f"{word}.")
        raise AttributeError(absent(word))

    def __dir__(self) -> list[str]:
        rest = [w.removeprefix(self._prefix) for w in WORDS if w.startswith(self._prefix)]
        return sorted({name.partition(".")[0] for name in rest})


def absent(word: str) -> str:
    """The message for a word that does not exist."""
    known = refusal(word)
    if known is not None:
        return f"there is no R.{word}: {known[0]}\n  try: {known[1]}"
    near = get_close_matches(word, [*WORDS, *OPERATORS], 3)
    return f"there is no R.{word}\n  try: {', '.join(f'R.{n}' for n in near) or 'dir(relax.op)'}"


def made(word: str, args: Sequence[Any], attrs: Mapping[str, Any]) -> Call | Word:
    """A call of an operator where the arguments say that it is one, else a Word."""
    values = all(isinstance(a, Value | AnyCall) for a in args)
    plain = word in (*elementwise.ONE, *elementwise.TWO) and word in OPERATORS and not attrs
    if word in OPERATORS and values and (plain or is_own(word, _typed(args), attrs)):
        return Call(word, tuple(args), frozen_attrs(attrs))
    return Word(word, tuple(args), tuple(attrs.items()))


def _typed(args: Sequence[Any]) -> Sequence[Any]:
    return [a for a in args if isinstance(a, Value)]


op = _Words()
