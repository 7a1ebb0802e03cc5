"""Rewriting by rules: most graph passes are lists of rules.

A rule is a function of a call: `rule(graph, out, call)` returns a value that replaces `out`, or
None. It looks at the calls that computed the arguments, and emits the calls it needs instead:

    def double_negative(graph: Rewriting, out: Var, call: Call) -> Value | None:
        \"\"\"-(-x)   =>   x\"\"\"
        inner = graph.call(call.args[0], "negative") if call.op == "negative" else None
        return inner.args[0] if inner else None

Only operators' calls with one output are rewritten. All other calls stay, in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..ir import UnknownValue
from ..ops import Attrs, Trait, evaluate, frozen_attrs, has, infer_types
from ..ops.indices import OutsideError
from .constants import is_static, with_constant
from .dims import same_type
from .eliminate import eliminate_dead_code
from .nodes import Binding, Call, Constant, Function, Value, Var, taken_names, uses

# Rules simplify, so rewriting ends. This limit detects rules that undo each other.
MOST_SWEEPS = 200

# In bytes. Folding a larger constant would grow the weights more than it saves time. A result of
# more elements than its operands have together may be less: a file of a hundred bytes can double
# a constant thirty times.
FOLD_LIMIT, GROWN_LIMIT = 1 << 30, 1 << 28


class Rewriting:
    """The state of a sweep: `bindings` has the bindings rewritten or kept so far."""

    def __init__(self, function: Function) -> None:
        self.bindings: list[Binding] = []
        self._made: dict[Value, Binding] = {}
        self._reads = uses(function)
        self._names = taken_names(function)
        self._at = Binding((), Call("", (), {}))
        self._named: set[Value] = set()

    def binding(self, value: Value) -> Binding | None:
        """The binding that computes the value; None for parameters and constants."""
        return self._made.get(value)

    def call(self, value: Value, *ops: str) -> Call | None:
        """The call that computes the value, if its operator is one of ops."""
        made = self._made.get(value)
        found = isinstance(made, Binding) and isinstance(made.call, Call) and made.call.op in ops
        return made.call if found else None  # type: ignore[union-attr, return-value]

    def call_of(self, value: Value, trait: Trait) -> Call | None:
        """The call that computes the value, if its operator has the trait."""
        made = self._made.get(value)
        call = made.call if made is not None else None
        return call if isinstance(call, Call) and has(call.op, trait) else None

    def once(self, value: Value) -> bool:
        """Whether at most one argument of one call reads the value."""
        return self._reads[value] <= 1

    def reads_within(self, value: Value, readers: Sequence[Value]) -> bool:
        """Whether only the calls that compute `readers` read the value."""
        calls = {id(self._made[r]): self._made[r].call for r in readers if r in self._made}
        calls.setdefault(id(self._at), self._at.call)
        return self._reads[value] <= sum(c.args.count(value) for c in calls.values())

    def emit(self, op: str, *args: Value, instead: Value | None = None, **attrs: Any) -> Value:
        """The operator's output, or a constant if all args are constants. It has the name and the
        source of `instead`, which must have no reader left. Raises ValueError if the operator
        refuses args."""
        folded = fold_call(op, args, frozen_attrs(attrs))
        if folded is not None:
            return folded[0]
        (type_,) = infer_types(op, [a.type for a in args], attrs)
        made = self._made.get(instead) if instead is not None else None
        if made is None:
            out = Var(self._names.fresh(f"{self._at.outputs[0].name}.{op}"), type_)
        else:
            out = Var(made.outputs[0].name, type_)
            self._named.add(out)
        source = (made or self._at).source
        self.keep(Binding((out,), Call(op, args, frozen_attrs(attrs)), source))
        self._reads.update(args)
        return out

    def keep(self, binding: Binding) -> None:
        """Keeps the function's binding as it is."""
        self.bindings.append(binding)
        self._made.update((out, binding) for out in binding.outputs)

    def rewritten(self, binding: Binding, rules: Sequence[Rule]) -> Value | None:
        """The value that replaces the binding's output, by the first rule that applies."""
        if not isinstance(binding.call, Call) or len(binding.outputs) != 1:
            return None
        self._at, begin = binding, len(self.bindings)
        out = binding.outputs[0]
        for rule in rules:
            value = rule(self, out, binding.call)
            if value is None:
                assert len(self.bindings) == begin, f"{rule.__name__} emitted, and gave nothing"
                continue
            if not same_type(value.type, out.type):
                # Computed dimensions may be equal even if this cannot be proved: skip the rule.
                assert not is_static(out), f"{rule.__name__}: {value.type} for {binding}"
                del self.bindings[begin:]
                continue
            self._reads.subtract(binding.call.args)
            last = self.bindings[-1].outputs if len(self.bindings) > begin else ()
            if last == (value,) and value not in self._named:
                # The last emitted binding replaces the old one, and takes its output's name.
                self.bindings[-1] = replace(self.bindings[-1], outputs=(out,))
                self._made[out] = self.bindings[-1]
                value = out
            self._reads[value] += self._reads[out] if value is not out else 0
            return value
        return None


Rule = Callable[[Rewriting, Var, Call], Value | None]


def rewrite(function: Function, rules: Sequence[Rule]) -> Function:
    """function after applying the rules until none applies, without dead calls; function itself if
    no rule applies."""
    for _ in range(MOST_SWEEPS):
        after = _sweep(function, rules)
        if after is function:
            return function
        function = eliminate_dead_code(after)
    raise AssertionError(f"rules without end: {', '.join(rule.__name__ for rule in rules)}")


def _sweep(function: Function, rules: Sequence[Rule]) -> Function:
    """Applies the rules to every binding once, first to last."""
    graph = Rewriting(function)
    values: dict[Value, Value] = {}
    changed = False
    for binding in function.bindings:
        args = tuple(values.get(a, a) for a in binding.call.args)
        if args != binding.call.args:
            binding = replace(binding, call=replace(binding.call, args=args))
        value = graph.rewritten(binding, rules)
        if value is None:
            graph.keep(binding)
            continue
        changed = True
        if value is not binding.outputs[0]:
            values[binding.outputs[0]] = value
    if not changed:
        return function
    outputs = tuple(values.get(v, v) for v in function.outputs)
    return replace(function, bindings=tuple(graph.bindings), outputs=outputs)


def two_constants(
    graph: Rewriting, out: Var, call: Call
) -> tuple[Value, Constant, Constant, Value] | None:
    """(x, a, b, x + a) of (x + a) + b, likewise of other operators; a and b are constants, and
    nothing else reads x + a."""
    inside, second = with_constant(call.args)
    inner = graph.call(inside, call.op)
    if second is None or inner is None or not graph.once(inside):
        return None
    x, first = with_constant(inner.args)
    return None if first is None or x.type != out.type else (x, first, second, inside)


def fold_call(op: str, args: Sequence[Value], attrs: Attrs) -> tuple[Constant, ...] | None:
    """The outputs of an operator on constants; None if an argument is not constant, or if the
    outputs are too large.

    dequantize stays: an integer layer needs the integers (quantize.py).
    """
    if op == "dequantize" or not all(isinstance(a, Constant) for a in args):
        return None
    return known_call(op, args, attrs)


def known_call(op: str, args: Sequence[Value], attrs: Attrs) -> tuple[Constant, ...] | None:
    """Like fold_call, for any operator."""
    if not all(isinstance(a, Constant) for a in args):
        return None
    types = infer_types(op, [a.type for a in args], attrs)
    if not all(isinstance(n, int) for t in types for n in t.shape):
        return None
    arrays = [a.value for a in args if isinstance(a, Constant)]
    size = sum(t.bytes for t in types)
    given = {id(a): a.size for a in arrays}  # an operand may be there twice
    grows = sum(t.elements for t in types) > sum(given.values())
    if size > (GROWN_LIMIT if grows else FOLD_LIMIT):
        return None
    try:
        return tuple(Constant(array) for array in evaluate(op, arrays, frozen_attrs(attrs)))
    except OutsideError:  # a run of the model says so, if it comes to this call
        return None
    except UnknownValue:  # an attribute holds a dynamic extent
        return None
