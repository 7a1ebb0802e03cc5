"""Fusion: calls that one kernel computes become one CallFused.

A call is fused into its immediate post-dominator, together with everything between, as in TVM (Chen
et al., OSDI 2018). All paths from the call to the outputs lead through the post-dominator. The
fused call has one output, so nothing in between needs memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from mlc_targets.object_format import MAX_OPERANDS

from ..ir.names import Names
from ..ir.printer import identifier
from ..ops import has, operator
from ..ops.pointwise import FUNCTION
from ..ops.strategy import ANCHORS
from ..ops.tile import MANY_PRODUCTS
from ..passes.context import optional
from .definition import Definition
from .extents import dims_of
from .nodes import Binding, Call, CallFused, CallTIR, Constant, Function, Value, Var, with_bindings
from .views import is_view

# The most calls in one kernel. A call counts once for each index at which one element of the result
# reads it, as in the kernel's expression. Larger kernels take longer to compile than they save.
MOST_CALLS = 64
NAMED_CALLS = 4  # a kernel's name lists this many of its operators
TRANSFORM = "layout_transform"
PRODUCTS = ("dense", "matmul")  # their kernels may transpose a matrix first


@optional(level=1)
def fuse_operators(function: Function) -> Function:
    """Calls of operators and functions   =>   kernels: elementwise calls join the convolution,
    matrix product or reduction before them. Injective calls join each other and the reduction
    after them. The transpose of a matrix joins the product after it."""
    members = _Graph(function).groups()
    bindings: list[Binding] = []
    for number, binding in enumerate(function.bindings):
        if number not in members:
            bindings.append(binding)
        elif members[number][-1] == number:
            group = [function.bindings[n] for n in members[number]]
            alone = len(group) == 1 and isinstance(binding.call, CallTIR)
            bindings.append(binding if alone else fused(group))
    return with_bindings(function, bindings)


def is_fusible(binding: Binding) -> bool:
    """Whether the binding is a call that needs a kernel, and may share it."""
    match binding.call:
        case Call():
            return not is_view(binding)
        case CallTIR(definition=definition):
            return definition is not None
    return False


def fused(bindings: Sequence[Binding]) -> Binding:
    """One binding that computes the outputs of the last one. Nothing else may read the other
    outputs.

    The anchor's arguments are the first parameters. Its source is the layer of the anchor, or of
    the first call.
    """
    anchor = next((b for b in bindings if pattern(b) in ANCHORS), bindings[0])
    made: dict[Value, Value] = {v: Var(v.name, v.type) for b in bindings for v in b.outputs}
    names = Names(v.name for b in bindings for v in b.outputs)
    args: list[Value] = []
    params: list[Var] = []
    for binding in (anchor, *(b for b in bindings if b is not anchor)):
        for arg in binding.call.args:
            if arg in made:
                continue
            if _is_scalar(arg) and pattern(binding) == "elementwise":
                made[arg] = arg
                continue
            made[arg] = param = Var(names.fresh(f"p{len(params)}"), arg.type)
            params.append(param)
            args.append(arg)
    inner = tuple(
        Binding(
            tuple(_var(made[v]) for v in b.outputs),
            replace(b.call, args=tuple(made[a] for a in b.call.args)),
            b.source,
        )
        for b in bindings
    )
    outputs = inner[-1].outputs
    function = Function(
        kernel_name(bindings), tuple(params), inner, outputs, tuple(v.name for v in outputs)
    )
    return Binding(bindings[-1].outputs, CallFused(function, tuple(args)), anchor.source)


def _var(value: Value) -> Var:
    assert isinstance(value, Var)
    return value


def _is_concatenation(binding: Binding) -> bool:
    return isinstance(binding.call, Call) and binding.call.op == "concatenate"


def _is_scalar(value: Value) -> bool:
    return isinstance(value, Constant) and value.type.elements == 1


def kernel_name(bindings: Sequence[Binding]) -> str:
    """The names of the operators and functions; for a long chain, the first ones and the number of
    the others."""
    ops = [_called(b) for b in bindings]
    more = len(ops) - NAMED_CALLS
    return "_".join(ops if more <= 1 else [*ops[:NAMED_CALLS], f"{more}_more"])


def _called(binding: Binding) -> str:
    match binding.call:
        case Call(op, attrs=attrs):
            return identifier(str(attrs.get(FUNCTION, op)))
        case CallTIR(func):
            return identifier(func)
    raise AssertionError(f"{binding} needs no kernel that others share")


def pattern(binding: Binding) -> str:
    match binding.call:
        case Call(op):
            return operator(op).pattern
        case CallTIR(definition=Definition(pattern=found)):
            return found
    return "opaque"


class _Graph:
    """A function's calls by number, with their readers, and the growing groups."""

    def __init__(self, function: Function) -> None:
        self.bindings = function.bindings
        self.pattern = [pattern(b) if is_fusible(b) else "opaque" for b in function.bindings]
        made = {v: n for n, b in enumerate(function.bindings) for v in b.outputs}
        self.exit = len(function.bindings)
        self.readers: list[list[int]] = [[] for _ in function.bindings]
        for number, binding in enumerate(function.bindings):
            for arg in binding.call.args:
                if isinstance(arg, Var) and arg in made:
                    self.readers[made[arg]].append(number)
        for value in function.outputs:
            if isinstance(value, Var) and value in made:
                self.readers[made[value]].append(self.exit)
        self.dominator = self._post_dominators()
        self.group = [{n} for n in range(self.exit)]  # one set, shared by its members

    def _post_dominators(self) -> list[int]:
        """For each call its immediate post-dominator, or the exit."""
        found = [self.exit] * (self.exit + 1)
        depth = [0] * (self.exit + 1)

        def meet(a: int, b: int) -> int:
            while a != b:
                if depth[a] < depth[b]:
                    a, b = b, a
                a = found[a]
            return a

        for number in reversed(range(self.exit)):
            readers = self.readers[number]
            nearest = readers[0] if readers else self.exit
            for reader in readers[1:]:
                nearest = meet(nearest, reader)
            found[number], depth[number] = nearest, depth[nearest] + 1
        return found

    def groups(self) -> dict[int, list[int]]:
        """For each call that needs a kernel, the calls of this kernel, in order."""
        # Where two anchors meet, as in a residual sum, the anchor with more anchors before it takes
        # the calls that follow. Blocks of a network then end in equal kernels, whatever their
        # shortcuts compute.
        before = self._anchors_before()
        for number in sorted(before, key=lambda n: (before[n], n), reverse=True):
            self._extend(number)
        for number in range(self.exit):
            if self._turn(number):
                continue
            if self.pattern[number] in ("elementwise", "injective"):
                self._extend(number)
        kernels = [n for n, b in enumerate(self.bindings) if is_fusible(b)]
        return {n: sorted(self.group[n]) for n in kernels}

    def _anchors_before(self) -> dict[int, int]:
        """For each anchor: the most other anchors on a path from the inputs to it."""
        count = [0] * (self.exit + 1)
        for number, readers in enumerate(self.readers):
            passed = count[number] + (self.pattern[number] in ANCHORS)
            for reader in readers:
                count[reader] = max(count[reader], passed)
        return {n: count[n] for n in range(self.exit) if self.pattern[n] in ANCHORS}

    def _extend(self, start: int) -> None:
        """Joins start with its post-dominators as far as the rules allow."""
        here = start
        while (end := self.dominator[here]) != self.exit:
            if end not in self.group[here]:
                way = {end, *self._between(here, end)}
                joined = set().union(*(self.group[n] for n in (here, *way)))
                if self._has_anchor(here) and self._is_read_wide(end):
                    return
                if not self._may_join(start, here, way, end, joined):
                    return
                for number in joined:
                    self.group[number] = joined
            here = end

    def _turn(self, number: int) -> bool:
        """Joins the transpose of a matrix with the product that alone reads it, and returns whether
        it did. The kernel transposes the matrix, then multiplies: reading a matrix across its rows
        would load single elements. Of large matrices each is a kernel, since one that does both
        runs on one thread."""
        call, reader = self.bindings[number].call, self.dominator[number]
        if reader == self.exit or self.readers[number] != [reader] or len(self.group[number]) > 1:
            return False
        product = self.bindings[reader].call
        if not isinstance(product, Call) or product.op not in PRODUCTS:
            return False
        if not isinstance(call, Call) or call.op != "transpose":
            return False
        *kept, row, column = range(len(call.attrs["axes"]))
        joined = self.group[number] | self.group[reader]
        if tuple(call.attrs["axes"]) != (*kept, column, row) or not self._is_small(joined):
            return False
        if _products(product) >= MANY_PRODUCTS:
            return False
        for other in joined:
            self.group[other] = joined
        return True

    def _is_read_wide(self, number: int) -> bool:
        """Whether the call dequantizes integers for the kernel of a single anchor. This kernel
        reads the integers, which are fewer bytes."""
        call, reader = self.bindings[number].call, self.dominator[number]
        if not isinstance(call, Call) or call.op != "dequantize" or reader == self.exit:
            return False
        return self._has_anchor(reader)

    def _has_anchor(self, number: int) -> bool:
        return any(self.pattern[n] in ANCHORS for n in self.group[number])

    def _between(self, begin: int, end: int) -> Iterator[int]:
        """The calls on paths from begin to its post-dominator end, without these two."""
        seen = {begin}
        left = [begin]
        while left:
            for reader in self.readers[left.pop()]:
                if reader != end and reader not in seen:
                    seen.add(reader)
                    left.append(reader)
                    yield reader

    def _may_join(self, start: int, here: int, way: set[int], end: int, joined: set[int]) -> bool:
        """Whether the calls of `joined` may be one kernel. `start` is being joined with its
        successors and has reached `here`. `way` has the calls after `here`, up to `end`."""
        anchors = sum(self.pattern[n] in ANCHORS for n in joined)
        if anchors > 1 or not self._is_small(joined) or self._transposes_unevenly(joined):
            return False
        passed = {self.pattern[n] for n in way}
        if self.pattern[start] in ANCHORS:
            return passed == {"elementwise"} and self._same_shape({start, *way})
        if self.pattern[end] == "reduction":
            between = {self.pattern[n] for n in way - {end}}
            return between <= {"elementwise", "injective"}
        if anchors:  # start feeds what follows an anchor: element for element
            before = {start, here, *way}
            return {self.pattern[n] for n in before} == {"elementwise"} and self._same_shape(before)
        return passed <= {"elementwise", "injective"}

    def _transposes_unevenly(self, joined: set[int]) -> bool:
        """Whether vectors would have to be transposed whose elements lie apart: two kernels move
        whole vectors."""
        ops = [call.op for n in joined if isinstance(call := self.bindings[n].call, Call)]
        return TRANSFORM in ops and any(has(op, "uneven") for op in ops)

    def _is_small(self, joined: set[int]) -> bool:
        """Whether the expression of the last call in `joined` has at most MOST_CALLS calls. A call
        read twice at one index counts once. A call read through calls that move elements counts for
        each path through them."""
        if len(joined) > MOST_CALLS or self._operands(joined) > MAX_OPERANDS:
            return False
        indices: dict[int, set[tuple[int, ...]]] = {}  # an index: the moving calls on its path
        total = 0
        for number in sorted(joined, reverse=True):
            found: set[tuple[int, ...]] = set()
            for reader in self.readers[number]:
                if reader in joined:
                    moved = () if self.pattern[reader] == "elementwise" else (reader,)
                    found.update((*moved, *way) for way in indices[reader])
            indices[number] = found or {()}
            total += len(indices[number])
            if total > MOST_CALLS:
                return False
        return True

    def _operands(self, joined: set[int]) -> int:
        """The number of operands of one kernel for the calls, with symbolic dimensions; or the
        number of pieces it concatenates, each in its own loop, if larger."""
        calls = [self.bindings[n] for n in joined]
        made = {v for b in calls for v in b.outputs}
        read = {a for b in calls for a in b.call.args if not _is_scalar(a)}
        dims = {d for b in calls for d in dims_of(b)}
        operands = len(read - made) + len(self.bindings[max(joined)].outputs) + len(dims)
        pieces = (len(b.call.args) for b in calls if _is_concatenation(b))
        return max(operands, sum(pieces))

    def _same_shape(self, numbers: set[int]) -> bool:
        return len({self.bindings[n].outputs[0].type.shape for n in numbers}) == 1


def _products(call: Call) -> int:
    """How many pairs of numbers a product of matrices multiplies; 0 where only the run time
    knows."""
    a, b = (arg.type.shape for arg in call.args[:2])
    extents = (*a[-2:-1], *b)
    known = [n for n in extents if isinstance(n, int)]
    return prod(known) if len(known) == len(extents) else 0
