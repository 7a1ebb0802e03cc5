"""What functions that differ in sizes alone have in common, and what is no size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlc_deploy import te
from mlc_deploy.graph.specialize import with_scalars
from mlc_deploy.ir import MOST, SCALARS, PrimFunc, Var, structural_equal, with_fields
from mlc_deploy.ir.outlines import in_common, outline_of
from mlc_deploy.schedule import Schedule


def matmul(rows: int, columns: int, depth: int, tile: int = 4) -> PrimFunc:
    """A product whose columns are computed `tile` at a time."""
    a, b = te.placeholder((rows, depth), name="a"), te.placeholder((depth, columns), name="b")
    k = te.reduce_axis((0, depth), "k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    sch = Schedule(te.create_prim_func([a, b, c]))
    i, j, inner = sch.get_loops("c")
    outer, lanes = sch.split(j, [None, tile])
    sch.reorder(i, outer, inner, lanes)
    sch.unroll(lanes)
    sch.parallel(i)
    return sch.func


def scaled(size: int, factor: float = 2.0, first: int = 0) -> PrimFunc:
    x = te.placeholder((size + first,), name="x")
    return te.create_prim_func([x, te.compute((size,), lambda i: x[i + first] * factor)])


def common(*funcs: PrimFunc) -> PrimFunc:
    outlines = [outline_of(f) for f in funcs]
    assert None not in outlines
    return in_common(funcs, [o for o in outlines if o is not None])


def member(func: PrimFunc, number: int) -> PrimFunc:
    """One of the functions that a common one is."""
    values = [func.attrs[SCALARS][number][p.name] for p in func.params if isinstance(p, Var)]
    attrs = {key: a for key, a in func.attrs.items() if key not in (MOST, SCALARS)}
    return with_fields(with_scalars(func, values), attrs=attrs)


Tripled = st.tuples(*[st.integers(1, 6)] * 3)


@settings(max_examples=30, deadline=None)
@given(st.lists(Tripled, min_size=2, max_size=4))
def test_each_function_is_the_common_one_for_its_sizes(turns: list[tuple[int, int, int]]) -> None:
    funcs = [matmul(8 * rows, 4 * columns, depth + 1) for rows, columns, depth in turns]
    alike: dict[bytes, list[PrimFunc]] = {}
    for func in funcs:
        outline = outline_of(func)
        assert outline is not None
        alike.setdefault(outline.digest, []).append(func)
    for some in alike.values():
        whole = common(*some)
        for number, func in enumerate(some):
            assert structural_equal(member(whole, number), func)


def test_a_size_that_follows_from_others_is_computed() -> None:
    """Else what lies within what would not be seen."""
    whole = common(matmul(8, 16, 5), matmul(16, 32, 7))
    assert whole.attrs[SCALARS] == ({"n0": 4, "n1": 5}, {"n0": 8, "n1": 7})
    assert whole.attrs[MOST] == {"n0": 8, "n1": 7}
    assert [str(b.shape) for b in whole.buffers] == [
        "(n0 * 2, n1)", "(n1, n0 * 4)", "(n0 * 2, n0 * 4)"
    ]  # fmt: skip


NO_SIZES: dict[str, Callable[[], tuple[PrimFunc, PrimFunc]]] = {
    "an unrolled loop": lambda: (matmul(8, 24, 5, 4), matmul(8, 24, 5, 6)),
    "one": lambda: (scaled(1), scaled(8)),
    "a zero with a sign": lambda: (scaled(8, 0.0), scaled(8, -0.0)),
    "a place in another order": lambda: (scaled(8, 2.0, 0), scaled(8, 2.0, 2)),
}


@pytest.mark.parametrize("name", NO_SIZES)
def test_what_is_no_size(name: str) -> None:
    a, b = (outline_of(f) for f in NO_SIZES[name]())
    assert a is not None and b is not None and a.digest != b.digest


def test_divisors_and_what_is_compared_are_no_sizes() -> None:
    def divided(by: int) -> PrimFunc:
        x = te.placeholder((64,), name="x")
        return te.create_prim_func([x, te.compute((64,), lambda i: x[i // by])])

    def guarded(to: int) -> PrimFunc:
        x = te.placeholder((64,), name="x")
        made = te.compute((64,), lambda i: te.if_then_else(i < to, x[i], 0.0))
        return te.create_prim_func([x, made])

    for make in (divided, guarded):
        a, b = outline_of(make(4)), outline_of(make(8))
        assert a is not None and b is not None and a.digest != b.digest


def moved(zero: int) -> PrimFunc:
    x = te.placeholder((8,), "int32", name="x")
    return te.create_prim_func(
        [x, te.compute((8,), lambda i: te.maximum(x[i] + zero, 0) * 7 - zero)]
    )


OPERANDS: dict[str, tuple[list[PrimFunc], list[Var], str]] = {
    "floats": ([scaled(8, 2.5), scaled(8, 3.0)], [Var("c0", "float32")], "* c0"),
    "whole numbers": ([scaled(8, 2.0), scaled(8, 3.0)], [Var("c0", "int16")], '"float32", c0)'),
    "a zero": ([scaled(8, 0.0), scaled(8, 3.0)], [Var("c0", "int16")], '"float32", c0)'),
    "large ones": ([scaled(8, 2.0), scaled(8, 40000.0)], [Var("c0", "float32")], "* c0"),
    "one there and back": ([moved(3), moved(5)], [Var("c0", "int16")], '(0 - T.Cast("int32", c0))'),
}


@pytest.mark.parametrize("name", OPERANDS)
def test_operands_become_parameters(name: str) -> None:
    funcs, wanted, text = OPERANDS[name]
    whole = common(*funcs)
    found = [(p.name, p.dtype) for p in whole.params if isinstance(p, Var)]
    assert found == [(v.name, v.dtype) for v in wanted]
    assert text in str(whole)
    assert whole.attrs[MOST] == {}


def test_what_is_compared_or_an_index_is_no_operand() -> None:
    x = te.placeholder((64,), name="x")
    made = te.compute((8,), lambda i: te.if_then_else(x[i * 3] < 2.0, x[i + 5], 0.0))
    outline = outline_of(te.create_prim_func([x, made]))
    assert outline is not None and outline.operands == ()


def test_names_make_no_difference() -> None:
    func = scaled(8)
    a, b = outline_of(func), outline_of(replace(func, name="other"))
    assert a == b
