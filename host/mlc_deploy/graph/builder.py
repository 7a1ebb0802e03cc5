"""Building graphs: call by call, functions by their parameters and outputs, modules of functions.

    bb = BlockBuilder()
    x = Var("x", tensor_type((1, "m")))
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit(op.relu(x))
            z = bb.emit_output(bb.emit_te(te_double, y))
        bb.emit_func_output(z)
    module = bb.get()

A front end that builds one function leaves the `with`s out: `param`, `emit`, `finish`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from .. import te
from ..errors import GraphError
from ..files.limits import RANK
from ..ir import Dim, IRModule, PrimFunc, structural_hash, with_fields
from ..ir import Var as Symbol
from ..ir.names import Names, distinct
from ..ir.printer import identifier
from ..ops import TensorType, frozen_attrs, infer_types
from .control import given_types, listed
from .dims import bound, fit, same_types, simplified, tensor_type
from .nodes import (
    AnyCall,
    Binding,
    Call,
    CallBranch,
    CallFused,
    CallLoop,
    CallPacked,
    CallTIR,
    Constant,
    Function,
    Value,
    Var,
)
from .relax import Word, emitted
from .specialize import resolve_calls
from .verify import verify

# An argument of a call. A call among them is emitted first; an array becomes a constant.
Argument = Value | AnyCall | Word | np.ndarray[Any, Any]
Types = TensorType | Sequence[TensorType]


class _Open:
    """A function that is being built."""

    def __init__(self, name: str, outer: _Open | None = None) -> None:
        self.name = name
        self.outer = outer  # for the body of a loop or a branch: the surrounding function
        self.captured: dict[Var, Var] = {}  # values of the surrounding function -> parameters
        self.names = Names()
        self.params: list[Var] = []
        self.bindings: list[Binding] = []
        self.known: set[Var] = set()
        self.free: list[Var] = []  # read already; must be parameters by the end
        self.block: set[Var] | None = None  # variables of the open dataflow block
        self.hidden: set[Var] = set()  # variables local to closed dataflow blocks
        self.function: Function | None = None

    def param(self, var: Var) -> None:
        if var in self.free:  # it took its own name when it was read
            self.free.remove(var)
        elif var in self.known or self.names.fresh(var.name) != var.name:
            raise GraphError(
                f"{self.name}: parameter '{var.name}' has the name of another variable",
                mend="another name for it",
            )
        self.known.add(var)
        self.params.append(var)

    def has(self, var: Var) -> bool:
        """Whether the variable belongs to this function or to one around it."""
        return var in self.known or (self.outer is not None and self.outer.has(var))

    def seen(self, var: Var) -> Var:
        """The variable to read here: var itself, or the parameter that captures it."""
        if self.outer is None or var in self.known or not self.outer.has(var):
            self.read(var)
            return var
        if var not in self.captured:
            self.captured[var] = param = Var(self.names.fresh(var.name), var.type)
            self.known.add(param)
        return self.captured[var]

    def read(self, var: Var) -> None:
        if var in self.hidden:
            raise GraphError(
                f"{self.name}: '{var.name}' is read outside of the dataflow block that it is in",
                mend="bb.emit_output(…) for the outputs of a block",
            )
        if var not in self.known:
            if self.names.fresh(var.name) != var.name:
                raise GraphError(
                    f"{self.name}: '{var.name}' belongs to another function, or has the name of an "
                    "existing variable",
                    mend="a parameter of this function, with a name of its own",
                )
            self.known.add(var)
            self.free.append(var)


class _OfLayer:
    """A builder whose calls come from one layer."""

    def __init__(self, builder: BlockBuilder, source: str) -> None:
        self.builder, self.source = builder, source

    def emit(self, op: str | AnyCall, *args: Value, **attrs: Any) -> Any:
        return self.builder.emit(op, *args, source=self.source, **attrs)


class BlockBuilder:
    """Collects bindings, functions and PrimFuncs; makes names unique and infers types.

    Raises GraphError for an invalid graph, ValueError for arguments that an operator refuses,
    KeyError for an unknown operator.
    """

    def __init__(self, name: str = "main") -> None:
        self._functions: dict[str, PrimFunc | Function] = {}
        self._by_hash: dict[str, str] = {}
        self._open = _Open(name)
        self._within = False

    # ---------------------------------------------------------------------------------- functions

    @contextmanager
    def function(self, name: str, params: Sequence[Var] | None = None) -> Iterator[None]:
        """Builds a function inside the `with`. emit_func_output ends it, and may give the
        parameters instead."""
        if self._within:
            raise GraphError(f"function '{name}' begins inside '{self._open.name}'")
        if name in self._functions:
            raise GraphError(f"there is a function '{name}' already", mend="another name")
        before, self._open, self._within = self._open, _Open(name), True
        try:
            for param in params or ():
                self._open.param(param)
            yield
            if self._open.function is None:
                raise GraphError(f"function '{name}' has no output", mend="bb.emit_func_output(…)")
        finally:
            self._open, self._within = before, False

    @contextmanager
    def dataflow(self) -> Iterator[None]:
        """A block of calls without side effects. Only the variables given to emit_output are
        visible outside."""
        here = self._open
        if here.block is not None:
            raise GraphError(f"{here.name}: a dataflow block begins inside of another")
        here.block = set()
        yield
        here.hidden |= here.block
        here.block = None

    def param(self, name: str, shape: Sequence[Dim | str], dtype: str = "float32") -> Var:
        """Adds a parameter."""
        made = tensor_type(shape, dtype)
        if len(made.shape) > RANK.most:
            raise GraphError(f"the parameter '{name}' has {_many(made)}", mend="fewer dimensions")
        var = Var(self._open.names.fresh(name), made)
        self._open.params.append(var)
        self._open.known.add(var)
        return var

    def emit_func_output(
        self,
        outputs: Argument | Sequence[Argument],
        params: Sequence[Var] | None = None,
        names: Sequence[str] = (),
    ) -> Function:
        """Ends the function. Output names default to the variables' names. A name that comes again
        gets a number: results are looked up by name."""
        here = self._open
        if not self._within:
            raise GraphError("emit_func_output ends no function", mend='with bb.function("main"):')
        if here.function is not None:
            raise GraphError(f"function '{here.name}' already has its output")
        if here.block is not None:
            raise GraphError(
                f"{here.name}: emit_func_output is inside a dataflow block", mend="it comes after"
            )
        several = outputs if isinstance(outputs, Sequence) else (outputs,)
        given = [self._value(v) for v in several]
        for param in params or ():
            here.param(param)
        return self._finish(given, names)

    def finish(self, outputs: Sequence[Value], names: Sequence[str] = ()) -> Function:
        """The function. Output names default to the variables' names."""
        return self._finish([self._value(v) for v in outputs], names)

    def _finish(self, outputs: Sequence[Value], names: Sequence[str]) -> Function:
        here = self._open
        if here.free:
            missing = ", ".join(v.name for v in here.free)
            raise GraphError(
                f"{here.name}: {missing} is read, and is not a parameter",
                mend=f'bb.function("{here.name}", [{missing}, …]), or params=[{missing}, …] at '
                "the end",
            )
        given = distinct(tuple(names) or [v.name or f"output{n}" for n, v in enumerate(outputs)])
        params = (*here.params, *here.captured.values())
        made = Function(here.name, params, tuple(here.bindings), tuple(outputs), given)
        here.function = made
        if here.outer is None:
            self._functions[here.name] = made
        return made

    def get(self) -> IRModule:
        """The module of all functions. Raises ValueError if a call does not fit its callee."""
        module = resolve_calls(IRModule(dict(self._functions)))
        for function in module.functions.values():
            if isinstance(function, Function):
                verify(function, module)
        return module

    # -------------------------------------------------------------------------------------- calls

    def emit(
        self,
        op: str | AnyCall | Word,
        *args: Argument,
        name: str | Sequence[str] = "",
        source: str = "",
        **attrs: Any,
    ) -> Any:
        """Emits a call, or an operator on args. Returns its output, or a tuple of several.

        `name`: for the outputs, or one for each. `source`: the layer that they come from. A word of
        Relax, `relax.op.nn.conv2d(x, w, padding=1)`, may become several calls.
        """
        if isinstance(op, Word):
            return self._word(op, name, source)
        if not isinstance(op, str):
            return self._emit(op, name, source)
        return self._emit(Call(op, args, frozen_attrs(attrs)), name, source)  # type: ignore[arg-type]

    def _word(self, word: Word, name: str | Sequence[str], source: str) -> Any:
        """Emits the calls that a word of Relax becomes."""

        def known(arg: Any) -> Any:
            match arg:
                case list() | tuple():
                    return tuple(map(known, arg))
                case Word() | np.ndarray():
                    return self._values(arg)
                case Var() | Constant() | Call() | CallTIR() | CallPacked():
                    return self._values(arg)
            return arg

        attrs = {key: known(value) for key, value in word.attrs}
        made = emitted(_OfLayer(self, source), word.word, known(word.args), attrs)
        names = [name] if isinstance(name, str) else list(name)

        def placed(part: Any, called: str | Sequence[str]) -> Any:
            return self._emit(part, called, source) if _is_call(part) else part

        if not isinstance(made, tuple):
            return placed(made, name)
        names = names if len(names) == len(made) else [*names[:1]] * len(made)
        return tuple(map(placed, made, names))

    def _values(self, arg: Any) -> Any:
        """The value of an argument, or a tuple of values where a word gives several."""
        made = self._word(arg, "", "") if isinstance(arg, Word) else self._value(arg)
        return made

    def emit_te(
        self,
        te_func: Callable[..., Any],
        *args: Any,
        primfunc_name_hint: str | None = None,
        name_hint: str = "",
        source: str = "",
        **named: Any,
    ) -> Any:
        """Calls te_func with placeholders for the values among args (and lists of values), makes a
        PrimFunc of the returned tensors, and emits a call of it."""
        values: list[Value] = []
        placeholders: list[te.Tensor] = []
        names = Names()

        def placeholder(arg: Any) -> Any:
            match arg:
                case list() | tuple():
                    return type(arg)(map(placeholder, arg))
                case Var() | Constant() | Call() | CallTIR() | CallPacked() | np.ndarray():
                    value = self._value(arg)
                    wanted = names.fresh(identifier(value.name or "constant"))
                    values.append(value)
                    placeholders.append(te.placeholder(value.type.shape, value.type.dtype, wanted))
                    return placeholders[-1]
            return arg

        made = te_func(*map(placeholder, args), **{k: placeholder(v) for k, v in named.items()})
        results = made if isinstance(made, (list, tuple)) else (made,)
        func_name = primfunc_name_hint or identifier(getattr(te_func, "__name__", "te_func"))
        func = te.create_prim_func([*placeholders, *results], func_name.strip("_"))
        return self.call_tir(func, values, name=name_hint, source=source)

    def call_tir(
        self,
        func: PrimFunc | str,
        args: Sequence[Argument],
        out: Types | None = None,
        *,
        tir_vars: Sequence[Dim | str] = (),
        name: str = "",
        source: str = "",
    ) -> Any:
        """Emits a call of a PrimFunc, and adds the PrimFunc to the module. Its buffers beyond args
        are the outputs. `out` is needed where `func` names a PrimFunc that is not in the module
        yet. tir_vars are its integer parameters: numbers and dimensions."""
        key = self.add_func(func) if isinstance(func, PrimFunc) else func
        values = tuple(self._value(a) for a in args)
        types = None if out is None else _types(out)
        integers = tensor_type(tir_vars).shape
        found = self._functions.get(key)
        if types is None:
            if not isinstance(found, PrimFunc):
                near = get_close_matches(key, self._functions, 3, 0.5)
                raise GraphError(
                    f"call_tir: there is no PrimFunc '{key}'", mend=", ".join(near) or "out=…"
                )
            types = output_types(found, [v.type for v in values], integers)
        return self._emit(CallTIR(key, values, types, integers), name, source)

    def call_dps_packed(
        self,
        func: str,
        args: Sequence[Argument],
        out: Types,
        *,
        pure: bool = True,
        name: str = "",
        source: str = "",
    ) -> Any:
        """Emits a call of a registered function (`register_func`) with outputs of the types `out`.

        pure: whether it has no effects besides its outputs.
        """
        values = tuple(self._value(a) for a in args)
        return self._emit(CallPacked(func, values, _types(out), pure), name, source)

    def emit_loop(
        self,
        turns: Dim,
        states: Sequence[Argument],
        step: Callable[[Value, list[Value], list[Value]], tuple[Sequence[Value], Sequence[Value]]],
        *,
        read: Sequence[tuple[Value, bool]] = (),
        written: Sequence[bool] = (),
        conditional: bool = False,
        name: str = "loop",
        source: str = "",
    ) -> tuple[list[Var], list[Var]]:
        """Emits a loop and returns its last states and its results. CallLoop explains the parts.
        step takes the iteration's number, the states and the elements of the sequences in `read`.
        It emits the calls of an iteration and returns the next states and the elements of the
        results. It may read every value that is known here."""
        given = [self._value(s) for s in states]
        sequences = [self._value(x) for x, _ in read]
        with self._body(name) as here:
            turn = self.param("turn", (), "int64")
            own = [self.param(s.name or "state", s.type.shape, s.type.dtype) for s in given]
            parts = [self.param(x.name or "x", x.type.shape[1:], x.type.dtype) for x in sequences]
            after, results = step(turn, [*own], [*parts])
            body = self.finish([*after, *results])
        back = tuple(backwards for _, backwards in read)
        args = (*given, *sequences, *here.captured)
        loop = CallLoop(body, args, turns, len(given), back, tuple(written), conditional)
        made = self._emit(loop, name, source)
        every = list(made) if isinstance(made, tuple) else [made]
        return every[: len(given)], every[len(given) :]

    def emit_branch(
        self,
        condition: Argument,
        then: Callable[[], Sequence[Value]],
        otherwise: Callable[[], Sequence[Value]],
        *,
        name: str = "branch",
        source: str = "",
    ) -> list[Var]:
        """Emits a branch on a bool[] condition and returns its outputs. `then` and `otherwise` emit
        calls and return values. They may read every value that is known here."""
        made: list[tuple[Function, dict[Var, Var]]] = []
        for emit, of in ((then, "then"), (otherwise, "otherwise")):
            with self._body(f"{name}_{of}") as here:
                made.append((self.finish(list(emit())), here.captured))
        captured = list(dict.fromkeys(v for _, own in made for v in own))
        one, other = (_taking(function, own, captured) for function, own in made)
        result = self._emit(
            CallBranch(one, other, (self._value(condition), *captured)), name, source
        )
        return list(result) if isinstance(result, tuple) else [result]

    @contextmanager
    def discarded(self) -> Iterator[None]:
        """Drops all calls that are emitted inside."""
        with self._body("discarded"):
            yield

    @contextmanager
    def _body(self, name: str) -> Iterator[_Open]:
        """Builds the function of a loop or a branch inside the `with`."""
        before = self._open
        self._open = _Open(name, before)
        try:
            yield self._open
        finally:
            self._open = before

    def emit_output(self, value: Argument, name: str = "") -> Any:
        """Makes a variable of the dataflow block, or a call, visible outside of it."""
        here = self._open
        if here.block is None:
            raise GraphError(
                "emit_output is outside of a dataflow block", mend="with bb.dataflow():"
            )
        if _is_call(value) or isinstance(value, Word):
            made = self.emit(value, name=name)  # type: ignore[arg-type]
        else:
            made = self._value(value)
        for var in made if isinstance(made, tuple) else (made,):
            here.block.discard(var)
        return made

    def add_func(self, func: PrimFunc, name: str = "") -> str:
        """Adds a PrimFunc unless the module has an equal one. Returns its name in the module."""
        digest = structural_hash(func)
        if digest not in self._by_hash:
            key = Names(self._functions).fresh(name or func.name)
            self._functions[key] = func if func.name == key else with_fields(func, name=key)
            self._by_hash[digest] = key
        return self._by_hash[digest]

    def _value(self, arg: Argument) -> Value:
        match arg:
            case Var():
                return self._open.seen(arg)
            case Constant():
                return arg
            case np.ndarray():
                return Constant(arg)
            case made if _is_call(made) or isinstance(made, Word):
                made = self.emit(arg)
                if isinstance(made, tuple):
                    raise GraphError(f"'{arg}' gives {len(made)} values where one is expected")
                assert isinstance(made, Var)
                return made
        raise GraphError(
            f"an argument is {arg!r:.80}, which is not a value of the graph",
            mend='graph.const(1.0, "float32") for numbers',
        )

    def _emit(self, call: Any, name: str | Sequence[str], source: str) -> Any:
        here = self._open
        if here.function is not None:
            raise GraphError(f"function '{here.name}' already has its output")
        call = replace(call, args=tuple(self._value(a) for a in call.args))
        if isinstance(call, CallPacked) and not call.pure and here.block is not None:
            raise GraphError(
                f"'{call.func}' has side effects, and is called in a dataflow block",
                where=str(call),
                mend="a call outside of `with bb.dataflow()`",
            )
        wanted, types = _result(call)
        for made in types:
            if len(made.shape) > RANK.most:
                raise ValueError(f"a result has {_many(made)}")
        asked = [name or wanted] * len(types) if isinstance(name, str) else name
        if len(asked) != len(types):
            asked = [wanted] * len(types)
        names = map(here.names.fresh, asked)
        outputs = tuple(Var(n, simplified(t)) for n, t in zip(names, types, strict=True))
        here.bindings.append(Binding(outputs, call, source))
        here.known.update(outputs)
        if here.block is not None:
            here.block.update(outputs)
        return outputs[0] if len(outputs) == 1 else outputs


def _many(made: TensorType) -> str:
    return f"{len(made.shape):,} dimensions, and at most {RANK.most} can be computed"


def _taking(function: Function, own: Mapping[Var, Var], captured: Sequence[Var]) -> Function:
    """A function with a parameter for each of `captured`: from `own`, or one that it never
    reads."""
    names = Names(
        [
            *(p.name for p in function.params),
            *(v.name for b in function.bindings for v in b.outputs),
        ]
    )
    params = [own[v] if v in own else Var(names.fresh(v.name), v.type) for v in captured]
    return replace(function, params=tuple(params))


def output_types(
    func: PrimFunc, args: Sequence[TensorType], tir_vars: Sequence[Dim] = ()
) -> tuple[TensorType, ...]:
    """The types of a PrimFunc's outputs: its buffers beyond args. Raises GraphError if args do not
    fit."""
    given = dict(zip((p for p in func.params if isinstance(p, Symbol)), tir_vars, strict=False))
    buffers = [bound(TensorType(b.shape, b.dtype), given) for b in func.buffers]
    taken, left = buffers[: len(args)], buffers[len(args) :]
    values, misfit = fit(taken, args)
    if misfit is not None or not left:
        raise GraphError(
            f"'{func.name}' takes {listed(buffers)}, the last of them as outputs; it is given "
            f"{listed(args)}"
        )
    return tuple(bound(t, values) for t in left)


def _result(call: AnyCall) -> tuple[str, Sequence[TensorType]]:
    """(a name for a call's outputs, their types)."""
    args = [a.type for a in call.args]
    match call:
        case Call(op, _, attrs):
            return op, infer_types(op, args, attrs)
        case CallTIR(func, _, types):
            return func, types
        case CallPacked(func, _, types):
            return identifier(func.rpartition(".")[2]), types
        case CallFused(function):
            params = [p.type for p in function.params]
            if not same_types(params, args):
                raise GraphError(f"'{function.name}' takes {listed(params)}, not {listed(args)}")
            return function.name, [v.type for v in function.outputs]
        case CallLoop(body):
            return body.name, given_types(call)
        case CallBranch(then):
            return then.name, given_types(call)


def _types(out: Types) -> tuple[TensorType, ...]:
    return (out,) if isinstance(out, TensorType) else tuple(out)


def _is_call(value: object) -> bool:
    return isinstance(value, AnyCall)
