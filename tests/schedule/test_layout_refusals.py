"""Every way in which rfactor and the primitives on layouts, padding and choices refuse."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

from mlc_deploy import te
from mlc_deploy.errors import ScheduleError
from mlc_deploy.ir import PrimFunc
from mlc_deploy.schedule import (
    Schedule,
    Trace,
    layout,
    padding,
    reduction,
    sampling,
    tree,
)
from mlc_deploy.script import from_script
from tests.schedule.small_programs import (
    chain,
    elsewhere,
    endless,
    matmul,
    rows,
    symbolic,
    twice,
)
from tests.schedule.test_refusals import _refusals_in, case, prepared, refusal


def with_border(a: te.Tensor) -> te.Tensor:
    def element(i: Any, j: Any) -> Any:
        inside = te.all_of(i >= 1, i < 7, j >= 1, j < 7)
        return te.if_then_else(inside, a[i - 1, j - 1], 0)

    bordered: te.Tensor = te.compute((8, 8), element, name="P")
    return bordered


def image() -> PrimFunc:
    """P is A with a border of one, in loops i, j."""
    a = te.placeholder((6, 6), name="A")
    return te.create_prim_func([a, with_border(a)])


def image_doubled() -> PrimFunc:
    """Q is P times 2."""
    a = te.placeholder((6, 6), name="A")
    p = with_border(a)
    return te.create_prim_func([a, te.compute((8, 8), lambda i, j: p[i, j] * 2, name="Q")])


def bordered(fill: Callable[[Any], Any], condition: Callable[[Any], Any]) -> PrimFunc:
    a = te.placeholder((6,), name="A")
    return te.create_prim_func(
        [
            a,
            te.compute((6,), lambda i: te.if_then_else(condition(i), a[i], fill(a[i])), name="P"),
        ]
    )


def filled_with_data() -> PrimFunc:
    return bordered(lambda x: x + 1, lambda i: i < 4)


def every_other() -> PrimFunc:
    return bordered(lambda x: 0, lambda i: (i % 2) < 1)


def huge() -> PrimFunc:
    a = te.placeholder((4096, 2048), name="A")
    return te.create_prim_func([a, te.compute((4096, 2048), lambda i, j: a[i, j] + 1, name="B")])


def long_row() -> PrimFunc:
    a = te.placeholder((), name="A")
    return te.create_prim_func([a, te.compute((1 << 40,), lambda i: a[()], name="B")])


def symbolic_rows() -> PrimFunc:
    n = te.var("n")
    a = te.placeholder((6, n), name="A")
    k = te.reduce_axis(n, "k")
    return te.create_prim_func([a, te.compute((6,), lambda i: te.sum(a[i, k], k), name="S")])


def guarded_rows() -> PrimFunc:
    a = te.placeholder((6, 10), name="A")
    k = te.reduce_axis(10, "k")
    s = te.compute((6,), lambda i: te.sum(a[i, k], k, where=a[i, k] > 0), name="S")
    return te.create_prim_func([a, s])


def triangle() -> PrimFunc:
    """Sums of the elements left of a diagonal."""
    func = from_script(
        """
@T.prim_func
def f(A: T.Buffer((6, 10), "float32"), S: T.Buffer((6,), "float32")):
    for i, k in T.grid(6, 10):
        with T.block("S"):
            vi, vk = T.axis.remap("SR", [i, k])
            T.where(k < i)
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + A[vi, vk]
"""
    )
    assert isinstance(func, PrimFunc)
    return func


def squares() -> PrimFunc:
    """A product of one matrix with itself: its dimensions mean different iterations."""
    a = te.placeholder((6, 6), name="A")
    k = te.reduce_axis(6, "k")
    c = te.compute((6, 6), lambda i, j: te.sum(a[i, k] * a[k, j], k), name="C")
    return te.create_prim_func([a, c])


REFUSALS = {
    "rfactor": [
        case(matmul, ("rfactor", "i", 0)),
        case(matmul, ("decompose_reduction", "C", "k"), ("rfactor", "k", 0)),
        case(guarded_rows, ("rfactor", "k", 0)),
        case(matmul, ("reverse_compute_at", "D", "i"), ("rfactor", "k", 0)),
        case(rows, ("fuse", "i", "k"), ("rfactor", "i_k_fused", 0)),
        case(
            rows,
            ("split", "i", (None, 2)),
            ("split", "k", (None, 5)),
            ("fuse", "i_1", "k_0"),
            ("rfactor", "k_1", 0),
        ),
        case(twice, ("rfactor", "k", 0)),
        case(elsewhere, ("rfactor", "k", 0)),
        case(elsewhere, ("decompose_reduction", "B", "k")),
        case(triangle, ("rfactor", "k", 0)),
        case(rows, ("rfactor", "k", 2)),
        case(symbolic_rows, ("rfactor", "k", 0)),
    ],
    "transform_layout": [
        case(chain, ("transform_layout", "B", "B", lambda i: i)),
        case(chain, ("transform_layout", "B", "B", "lambda i, j: (")),
        case(chain, ("transform_layout", "B", "B", "lambda i, j: print(i)")),
        case(chain, ("transform_layout", "B", "B", "lambda i, j: [foo, j]")),
        case(chain, ("transform_layout", "B", "B", "lambda i, j: [i, 'j']")),
        case(chain, ("transform_layout", "B", "B", "lambda i, j: [0] * 999999999")),
        case(chain, ("transform_layout", "B", "C", lambda i, j: (j, i))),
        case(chain, ("transform_layout", "B", ("read", 1), lambda i, j: (j, i))),
        case(chain, ("transform_layout", "B", ("input", 0), lambda i, j: (j, i))),
        case(symbolic, ("transform_layout", "B", "B", lambda i: (i // 4, i % 4))),
        case(chain, ("transform_layout", "B", "B", lambda i, j: ())),
        case(chain, ("transform_layout", "B", "B", lambda i, j: (i - 1, j))),
        case(huge, ("transform_layout", "B", "B", lambda i, j: (j, i))),
        case(chain, ("transform_layout", "B", "B", lambda i, j: i + j)),
    ],
    "transform_block_layout": [
        case(
            chain,
            ("compute_at", "B", "j_1"),
            ("transform_block_layout", "B", lambda i, j: (j, i)),
        ),
        case(chain, ("parallel", "i"), ("transform_block_layout", "B", lambda i, j: (j, i))),
        case(chain, ("transform_block_layout", "B", lambda i, j: (i, 2 * j))),
        case(matmul, ("transform_block_layout", "C", lambda i, j, k: (i, j * 16 + k))),
        case(chain, ("transform_block_layout", "B", lambda i, j: (i, (j + 5) % 12))),
    ],
    "decompose_padding": [
        case(image, ("add_unit_loop", "P"), ("decompose_padding", "P", "x")),
        case(chain, ("decompose_padding", "B", "i_1")),
        case(rows, ("decompose_padding", "S", "i")),
        case(chain, ("decompose_padding", "B", "i")),
        case(filled_with_data, ("decompose_padding", "P", "i")),
        case(image_doubled, ("reverse_compute_at", "Q", "i"), ("decompose_padding", "P", "i")),
        case(image, ("unroll", "j"), ("decompose_padding", "P", "i")),
        case(every_other, ("decompose_padding", "P", "i")),
        case(image, ("decompose_padding", "P", "j")),
    ],
    "pad_einsum": [
        case(chain, ("pad_einsum", "B", (4, 4))),
        case(matmul, ("pad_einsum", "C", (4, 4))),
        case(matmul, ("split", "i", (None, 4)), ("pad_einsum", "C", (4, 4, 4))),
        case(matmul, ("pad_einsum", "C", (4, 0, 4))),
        case(squares, ("pad_einsum", "C", (4, 1, 1))),
    ],
    "sampling": [
        case(symbolic, ("sample_perfect_tile", "i", 2)),
        case(long_row, ("sample_perfect_tile", "i", 2)),
        case(chain, ("sample_perfect_tile", "i", 0)),
        case(chain, ("sample_perfect_tile", "i", 2, 16, (2, 2, 2))),
        case(chain, ("sample_categorical", (1, 2), (1.0,))),
        case(chain, ("sample_categorical", (1, 2), (0.5, 0.5), 2)),
    ],
}


@pytest.mark.parametrize("primitive", REFUSALS)
def test_refusals(primitive: str, golden: Callable[..., None]) -> None:
    shown = (refusal(program, steps) for program, steps in REFUSALS[primitive])
    # a function's text says where in this module and in memory it lies
    text = re.sub(r"<function .*<lambda> at 0x[0-9a-f]+>", "<lambda>", "\n\n".join(shown))
    golden(text, f"refused_{primitive}")


def test_every_refusal_is_shown() -> None:
    """Each `refuse(…)` of these modules is reached by a case above."""
    modules = (layout, padding, sampling)
    reached: set[tuple[str, int]] = set()
    original = tree.refuse

    def recording(*args: Any, **kwargs: Any) -> None:
        frame = sys._getframe(1)
        reached.add((frame.f_globals["__name__"], frame.f_lineno))
        original(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        for module in (*modules, reduction):
            patch.setattr(module, "refuse", recording)
        for program, steps in (c for cases in REFUSALS.values() for c in cases):
            with pytest.raises(ScheduleError):
                prepared(program, steps)
    missed = [
        f"{module.__name__}:{first} in {function}"
        for module in modules
        for function, first, last in _refusals_in(module)
        if not any((module.__name__, line) in reached for line in range(first, last + 1))
    ]
    assert not missed, "\n".join(missed)


def test_no_tile_is_larger_than_indices_reach() -> None:
    with pytest.raises(ScheduleError, match="too many to check"):
        prepared(endless, [("transform_layout", ("B", "B", lambda i, j: (j, i)))])


INDEX_MAPS = {
    "lambda i, j: [j // 4, i, j % 4]": (3, 8, 4),
    "lambda i, j: (i, j - -1 * j)": (8, 23),
    "lambda i, j: [i + max(j, 0) * 8]": (96,),
    "lambda i, j: T.min(i, 7) * 12 + j": (96,),
}


@pytest.mark.parametrize("text", INDEX_MAPS)
def test_texts_of_index_maps(text: str) -> None:
    sch = prepared(chain, [("transform_layout", ("B", "B", text))])
    assert sch.block("B").writes[0].buffer.shape == INDEX_MAPS[text]


def test_an_index_map_is_replayed_as_it_was_written() -> None:
    step = ("B", "B", lambda i, j: (te.minimum(i, 7), j))
    sch = prepared(chain, [("transform_layout", step)])
    again = Schedule(chain())
    Trace.loads(sch.trace.dumps()).apply(again)
    assert str(again.func) == str(sch.func)


@pytest.mark.parametrize(
    "text",
    [
        "lambda i, i: [i]", "lambda i, j: [i, *j]", "lambda *i: [i]", "lambda i, j=2: [i, j]",
        "lambda i, j: [i, True]", "lambda i, j: [i, 0.5]", "lambda i, j: [i, min(j)]",
        "lambda min, j: [min(j, 1), j]", "lambda i, j: [i, T.foo(j, 1)]", "lambda i, j: [i, j\0]",
        "lambda i, j: [i, " + "-" * 100_000 + "1]", "lambda i, j: [i, j" + " + j" * 10_000 + "]",
        "lambda i, j: [i.real, j]", "lambda i, __debug__: [i, __debug__]",
    ],
)  # fmt: skip
def test_what_is_no_index_map(text: str) -> None:
    with pytest.raises(ScheduleError, match="is not an index map"):
        prepared(chain, [("transform_layout", ("B", "B", text))])
