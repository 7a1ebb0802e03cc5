"""Exact facts about the iterations of a loop: which elements one iteration writes, and whether two
iterations write different elements. Where that is not certain the answer is no."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..arith import Linear, Ranges, bounds, equal, expr_bounds, linear, loop_ranges, to_expr
from ..arith.linear import Atom
from ..arith.regions import Interval
from ..ir import (
    Binary,
    Block,
    Buffer,
    Compare,
    Const,
    Dim,
    Expr,
    For,
    Region,
    Var,
    const,
    expr,
    is_const,
    same_exprs,
    statements,
    substitute,
    walk,
)
from ..ir.build import conjuncts
from ..ir.nodes import IterKind
from .tree import vars_in


def conditions(block: Block) -> list[Expr]:
    """The parts of a block's predicate."""
    return [c for c in conjuncts(block.predicate) if not is_const(c, True)]


# ------------------------------------------------------------------------------- within one
# iteration


def written_box(
    block: Block, write: Region, inner: Sequence[For], ranges: Ranges
) -> tuple[list[Interval], list[Expr]] | None:
    """The box of elements that the block writes while the `inner` loops run, and the conditions on
    the outside loops under which it does. Elements beyond the buffer do not count. None where the
    written elements are not a whole box.
    """
    known = loop_ranges(inner, ranges)
    bindings = {i.var: i.binding for i in block.iters}
    moving = {loop.var: loop for loop in inner}
    seen: set[Var] = set()
    box: list[Interval] = []
    for low, extent, size in zip(write.minimum, write.extent, write.buffer.shape, strict=True):
        index = substitute(low, bindings)
        used = vars_in(index) & set(moving)
        interval = _interval(index, [moving[v] for v in used], size, known)
        if interval is None or used & seen or not is_const(extent, 1):
            return None
        seen |= used
        box.append(interval)
    inside = [linear(i.binding - i.extent, known) for i in block.iters]
    outside: list[Expr] = []
    for condition in conditions(block):
        if not vars_in(condition) & set(moving):
            outside.append(condition)
        elif not any(_follows(condition, form, known) for form in inside):
            return None
    return box, outside


def is_bounded_by_iterations(block: Block, ranges: Ranges) -> bool:
    """Whether the predicate only keeps iterations within their extents. It then can be derived
    again wherever the block is put."""
    below = [linear(i.binding - i.extent, ranges) for i in block.iters]
    negative = [linear(-1 - i.binding, ranges) for i in block.iters]
    return all(
        any(_follows(condition, form, ranges) for form in (*below, *negative))
        for condition in conditions(block)
    )


def _interval(index: Expr, loops: Sequence[For], size: Dim, known: Ranges) -> Interval | None:
    """The interval of an index's values while loops run; None where it has gaps, or is unknown."""
    form = linear(index, known)
    steps = {loop.var: form.terms.get(loop.var, 0) for loop in loops}
    minimum = to_expr(form.without(*steps), index.dtype)
    if vars_in(minimum) & set(steps):
        return None  # hidden in a quotient or remainder
    if len(loops) == 1 and not isinstance(loops[0].extent, Const):
        (loop,) = loops
        whole = steps[loop.var] == 1 and is_const(minimum, 0) and equal(loop.extent, expr(size))
        return (minimum, loop.extent) if whole else None
    reached = 1  # values so far are 0, 1, … reached - 1
    for loop in sorted(loops, key=lambda loop: steps[loop.var]):
        step = steps[loop.var]
        if not isinstance(loop.extent, Const):
            # the outermost of a split: so many iterations that they reach the end
            last = loop is max(loops, key=lambda loop: steps[loop.var])
            rest = expr(size) + (step - 1)
            whole = last and 0 < step <= reached and equal(loop.extent, rest // step, known)
            return (minimum, expr(size)) if whole and is_const(minimum, 0) else None
        turns = int(loop.extent)
        if turns > 1 and not 0 < step <= reached:
            return None
        reached += step * (turns - 1)
    return minimum, const(reached)


def _follows(condition: Expr, inside: Linear, known: Ranges) -> bool:
    """Whether `condition` holds wherever inside < 0 does."""
    if not (isinstance(condition, Compare) and condition.op in ("<", ">=")):
        return False
    form = linear(condition.a, known).plus(linear(condition.b, known), -1)
    if condition.op == ">=":
        form = form.times(-1).plus(Linear(-1, {}))
    for atom, step in form.terms.items():
        factor, rest = divmod(inside.terms.get(atom, 0), step)
        if factor > 0 and rest == 0:
            high = bounds(form.times(factor).plus(inside, -1), known)[1]
            return high is not None and high <= 0
    return False


def is_whole(interval: Interval, size: Dim, ranges: Ranges) -> bool:
    """Whether an interval is a dimension of that size from end to end."""
    low, extent = interval
    return equal(low, const(0), ranges) and equal(extent, expr(size), ranges)


# ------------------------------------------------------------------------------ between two
# iterations


def turns_disjoint(target: For, block: Block, kinds: Sequence[IterKind] = ("spatial",)) -> bool:
    """Whether different iterations of the loop run the block for different iterations of these
    kinds."""
    if isinstance(target.extent, Const) and int(target.extent) <= 1:
        return True
    # Only what the loop moves can tell its iterations apart.
    moved = [i for i in block.iters if target.var in vars_in(i.binding)]
    bindings = [i.binding for i in moved if i.kind in kinds]
    if not moved or any(e is target.var for e in bindings):
        return bool(moved)
    loops = [s for s in statements(target) if isinstance(s, For)]
    known = loop_ranges(loops)
    moving = {loop.var for loop in loops}

    def forms() -> Iterator[Linear]:  # quick ones first: one that differs is enough
        yield from (linear(e, known) for e in bindings)
        if "spatial" in kinds:
            yield from (p for write in block.writes if (p := _place(block, write, known)))
        parts = [_moving_part(e, moving, known) for e in bindings]
        yield from _whole_numbers([_digit(e, known) for e in parts], known)

    return any(_differs(_moved(form, moving), loops, known) for form in forms())


def turns_write_apart(target: For, block: Block) -> bool:
    """Whether different iterations of the loop write different elements: they run the block for
    different spatial iterations, and every write tells these apart."""
    if isinstance(target.extent, Const) and int(target.extent) <= 1:
        return True
    return turns_disjoint(target, block) and all(
        _tells_apart(target, block, write) for write in block.writes
    )


def _tells_apart(target: For, block: Block, write: Region) -> bool:
    """Whether a write touches different elements in all iterations, which run the block for
    different iterations: each iteration that the loop moves has a dimension of its own, or some
    index moves further from iteration to iteration than all other loops and the extent reach."""
    moved = {
        i.var
        for i in block.iters
        if i.kind == "spatial" and target.var in vars_in(i.binding) and not is_const(i.extent, 1)
    }
    own = {_owner(low, size) for low, size in zip(write.minimum, write.extent, strict=True)}
    if moved <= own:
        return True
    loops = [s for s in statements(target) if isinstance(s, For)]
    known = loop_ranges(loops)
    moving = {loop.var for loop in loops}
    bindings = {i.var: i.binding for i in block.iters}
    for low, size in zip(write.minimum, write.extent, strict=True):
        form = _moved(linear(substitute(low, bindings), known), moving)
        if isinstance(size, Const) and _differs(form, loops, known, int(size)):
            return True
    place = _place(block, write, known)
    return place is not None and _differs(_moved(place, moving), loops, known)


def turns_share(target: For, writer: Block, other: Block) -> Buffer | None:
    """A buffer that one block writes and another block uses, perhaps in different iterations of the
    loop; None where each iteration uses what no other iteration writes."""
    loops = [s for s in statements(target) if isinstance(s, For)]
    known = loop_ranges(loops)
    for write in writer.writes:
        for use in (*other.reads, *other.writes):
            if use.buffer is not write.buffer:
                continue
            one, two = (_placed(b, r) for b, r in ((writer, write), (other, use)))
            sizes = (*one, *write.extent), (*two, *use.extent)
            if _same_in_a_turn(*sizes, loops[1:]) and _tells_apart(target, writer, write):
                continue
            pairs = zip(one, two, write.extent, use.extent, strict=True)
            if not any(_in_one_window(target, loops, known, *pair) for pair in pairs):
                return write.buffer
    return None


def _placed(block: Block, region: Region) -> list[Expr]:
    bindings = {i.var: i.binding for i in block.iters}
    return [substitute(low, bindings) for low in region.minimum]


def _same_in_a_turn(some: Sequence[Expr], others: Sequence[Expr], inner: Sequence[For]) -> bool:
    """Whether expressions go through the same values within an iteration: they are the same, but
    for loops of the same numbers of iterations."""
    turns = {loop.var: loop.extent for loop in inner}
    one, two = ([v for v in _in_order(side) if v in turns] for side in (some, others))
    if len(one) != len(two) or not same_exprs([turns[v] for v in one], [turns[v] for v in two]):
        return False
    renamed = {v: to for v, to in zip(two, one, strict=True) if v is not to}
    return same_exprs(some, [substitute(e, renamed) for e in others])


def _in_order(expressions: Sequence[Expr]) -> list[Var]:
    """Their variables, each once, in the order met."""
    return list(dict.fromkeys(v for e in expressions for v in walk(e) if isinstance(v, Var)))


def _in_one_window(
    target: For, loops: Sequence[For], known: Ranges, a: Expr, b: Expr, size_a: Expr, size_b: Expr
) -> bool:
    """Whether two indices stay, in each iteration of the loop, within a window that moves from
    iteration to iteration by its length at least."""
    moving = {loop.var for loop in loops}
    ends: list[int] = []
    steps: set[int] = set()
    outside: list[Linear] = []
    for index, size in ((a, size_a), (b, size_b)):
        form = linear(index, known)
        steps.add(form.terms.get(target.var, 0))
        rest = form.without(target.var)
        if any(target.var in _atom_vars(atom) for atom in rest.terms):
            return False
        inner = _moved(rest, moving)
        outside.append(Linear(0, {k: c for k, c in rest.terms.items() if k not in inner.terms}))
        low, high = bounds(inner, known)
        if low is None or high is None or not isinstance(size, Const):
            return False
        ends += [low + rest.constant, high + rest.constant + int(size) - 1]
    return len(steps) == 1 and outside[0] == outside[1] and max(ends) - min(ends) < abs(steps.pop())


def _owner(low: Expr, size: Expr) -> Var | None:
    """The iteration whose values take different elements of a dimension: low is a multiple of it,
    by the extent at least."""
    if isinstance(low, Var):
        return low if is_const(size, 1) else None
    form = linear(low, {})
    if len(form.terms) != 1 or not isinstance(size, Const):
        return None
    ((atom, step),) = form.terms.items()
    return atom if isinstance(atom, Var) and abs(step) >= int(size) else None


def _differs(form: Linear, loops: Sequence[For], known: Ranges, size: int = 1) -> bool:
    """Whether the form, an index of `size` elements, takes different ones in all iterations of the
    first of `loops`, whatever the others do: the first moves it further than all others together,
    or the loops are its digits."""
    var = loops[0].var
    step = form.terms.get(var)
    rest = form.without(var)
    if step is not None and not any(var in _atom_vars(a) for a in rest.terms):
        low, high = bounds(rest, known)
        if low is not None and high is not None and high - low + size <= abs(step):
            return True
    return size == 1 and _digits(form, loops)


def _digits(form: Linear, loops: Sequence[For]) -> bool:
    """Whether the form is `a + n_a * (b + n_b * (c + …))` of loops a, b, c … with n_a, n_b …
    iterations, the first of `loops` among them: then it is different in all iterations. The numbers
    of turns may be symbolic, as after a split into a number of parts."""
    step: Expr = const(1)
    left, seen = form, False
    while left.terms:
        for loop in loops:
            rest = left.plus(linear(loop.var * step, {}), -1)
            if len(rest.terms) < len(left.terms):
                left, step = rest, step * loop.extent
                seen = seen or loop is loops[0]
                break
        else:
            return False
    return seen


def _place(block: Block, write: Region, known: Ranges) -> Linear | None:
    """Where in memory a block writes, in elements; None for more than one place. Indices made from
    a fused loop add up to that loop again."""
    if not all(is_const(n, 1) for n in write.extent):
        return None
    bindings = {i.var: i.binding for i in block.iters}
    total, step = Linear(0, {}), 1
    for low, size in zip(reversed(write.minimum), reversed(write.buffer.shape), strict=True):
        if not isinstance(size, int):
            return None
        total = total.plus(linear(substitute(low, bindings), known), step)
        step *= size
    return total


def _moved(form: Linear, moving: set[Var]) -> Linear:
    """The part of a form that moves."""
    return Linear(0, {a: c for a, c in form.terms.items() if _atom_vars(a) & moving})


def _atom_vars(atom: Atom) -> set[Var]:
    return {atom} if isinstance(atom, Var) else vars_in(to_expr(Linear(0, {atom: 1}), "int32"))


ONE = Linear(1, {})


@dataclass(frozen=True, slots=True)
class Digit:
    """number % high // low, in a number of mixed radix; without `high`, number // low. These may be
    symbolic: numbers of iterations that are known at run time only."""

    number: Linear
    low: Linear
    high: Linear | None


def _moving_part(e: Expr, moving: set[Var], known: Ranges) -> Expr:
    """e without constant factors, without fixed summands, and without summands smaller than a
    factor. Where the result is different, so is e."""
    match e:
        case Binary("+" | "-", a, b) if not vars_in(b) & moving:
            return _moving_part(a, moving, known)
        case Binary("+" | "-", a, b) if not vars_in(a) & moving:
            return _moving_part(b, moving, known)
        case Binary("+", Binary("*", a, Const(factor)), b) if _within(b, int(factor), known):
            return _moving_part(a, moving, known)
        case Binary("+", a, b) if _within(b, 1, known):
            return _moving_part(a, moving, known)
        case Binary("+", Binary("+", a, b), c):  # (a * n + b) + c, where b + c is less than n
            return _moving_part(a + (b + c), moving, known)
        case Binary("*", a, Const(value)) if value:
            return _moving_part(a, moving, known)
    return e


def _within(e: Expr, size: int, known: Ranges) -> bool:
    """Whether 0 <= e < size."""
    low, high = expr_bounds(e, known)
    return low is not None and high is not None and low >= 0 and high < size


def _digit(e: Expr, known: Ranges) -> Digit | None:
    """e as a digit of a number; iterations of fused loops are digits."""
    match e:
        case Binary("//" | "%", a, by) if _is_size(by, known):
            inner = _digit(a, known)
            if inner is None:
                return None
            cut = linear(to_expr(inner.low, by.dtype) * by, {})
            if inner.high is not None and not _divides(cut, inner.high):
                return None
            if e.op == "//":
                return Digit(inner.number, cut, inner.high)
            return Digit(inner.number, inner.low, cut)
        case Binary("//" | "%"):
            return None
    return Digit(linear(e, known), ONE, None)


def _is_size(e: Expr, known: Ranges) -> bool:
    """Whether e is positive and the same in all iterations."""
    if isinstance(e, Const):
        return int(e.value) > 0
    return not any(v in known for v in vars_in(e))


def _divides(a: Linear, b: Linear) -> bool:
    return a == b or (a.is_constant and b.is_constant and b.constant % a.constant == 0)


def _whole_numbers(digits: Sequence[Digit | None], known: Ranges) -> list[Linear]:
    """The numbers whose digits are all there."""
    found = [d for d in digits if d is not None]
    whole: list[Linear] = []
    for number in dict.fromkeys(d.number for d in found):
        own = {d.low: d.high for d in found if d.number == number}
        reached: Linear | None = ONE
        while reached is not None and reached in own:
            reached = own.pop(reached)
        most = reached.constant if reached is not None and reached.is_constant else 0
        low, high = bounds(number, known)
        all_there = low is not None and low >= 0 and high is not None and high < most
        if reached is None or all_there:
            whole.append(number)
    return whole
