"""What stages refuse: the whole messages. Lines of the user's program are those of this file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import mlc_deploy as mlc
from mlc_deploy import te

Golden = Callable[..., None]
Mistake = Callable[["Program"], Any]


class Program:
    """D = sum(B) + 1, B = 2 A, and a schedule of it."""

    def __init__(self) -> None:
        self.a = a = te.placeholder((16, 16), name="A")
        self.b = b = te.compute((16, 16), lambda i, j: a[i, j] * 2, name="B")
        self.k = k = te.reduce_axis((0, 16), "k")
        self.c = c = te.compute((16,), lambda i: te.sum(b[i, k], axis=k), name="C")
        self.d = te.compute((16,), lambda i: c[i] + 1, name="D")
        self.s = te.create_schedule(self.d.op)
        self.i, self.j = b.op.axis

    def lower(self, *args: te.Tensor) -> mlc.PrimFunc:
        return mlc.lower(self.s, args or [self.a, self.d], simple_mode=True)


def then(*steps: Mistake) -> Mistake:
    """One call after another; the last is the mistake."""
    return lambda p: [step(p) for step in steps]


def at_the_call() -> Iterator[Mistake]:
    yield lambda p: p.s[p.b].split(p.c.op.axis[0], factor=3)
    yield then(lambda p: p.s[p.b].split(p.i, factor=3), lambda p: p.s[p.b].split(p.i, factor=3))
    yield then(lambda p: p.s[p.b].fuse(p.i, p.j), lambda p: p.s[p.b].vectorize(p.j))
    yield lambda p: p.s[p.b].split(p.i)
    yield lambda p: p.s[p.b].split(p.i, factor=3, nparts=3)
    yield lambda p: p.s[p.b].split(p.i, factor=0)
    yield lambda p: p.s[p.b].reorder(p.j, p.j)
    yield lambda p: p.s[p.b].reorder(p.j, p.c.op.axis[0])
    yield lambda p: p.s[p.b].fuse(p.j, p.i)
    yield lambda p: p.s[p.b].fuse()
    yield lambda p: p.s[p.c].fuse(p.c.op.axis[0], p.k)
    yield lambda p: p.s[p.c].vectorize(p.k)
    yield lambda p: p.s[p.c].parallel(p.k)
    yield then(lambda p: p.s[p.b].vectorize(p.j), lambda p: p.s[p.b].split(p.j, factor=4))
    yield then(lambda p: p.s[p.b].vectorize(p.j), lambda p: p.s[p.b].parallel(p.j))
    yield lambda p: p.s[p.a].parallel(p.i)
    yield lambda p: p.s[p.d].compute_inline()
    yield lambda p: p.s[p.c].compute_inline()
    yield lambda p: p.s[p.d].compute_at(p.s[p.c], p.k)
    yield lambda p: p.s[p.a].compute_root()
    yield lambda p: p.s[p.b].compute_at(p.s[p.c], p.i)
    yield lambda p: p.s[p.b].compute_at(Program().s[p.b], p.i)
    yield lambda p: p.s[p.b].compute_at(p.s[p.b], p.i)
    yield lambda p: p.s[p.c].compute_at(p.s[p.b], p.i)
    yield lambda p: p.s[p.b].set_scope("shared")  # type: ignore[arg-type]
    yield lambda p: p.s[te.placeholder((1,), name="other")]
    yield lambda p: te.create_schedule(p.a.op)
    yield lambda p: te.create_schedule([])
    yield lambda p: p.s.cache_read(p.a, "local", [p.c])
    yield lambda p: p.s.cache_write(p.a, "local")
    yield then(lambda p: p.s[p.b].split(p.i, factor=4), lambda p: p.s.cache_write(p.b, "local"))
    yield lambda p: p.s.rfactor(p.b, p.i)
    yield lambda p: p.s.rfactor(p.c, p.c.op.axis[0])
    yield lambda p: p.s.rfactor(p.c, p.k, factor_axis=2)
    yield then(lambda p: p.s[p.c].split(p.k, factor=4), lambda p: p.s.rfactor(p.c, p.k))
    yield lambda p: p.s[p.b].bind(p.i, te.thread_axis("threadIdx.x"))
    yield lambda p: p.s[p.b].bind(p.i, te.thread_axis((0, 4), "blockIdx.x"))  # type: ignore[arg-type]
    yield lambda p: p.s[p.b].pragma(p.i, "auto_unrol_max_step", 16)
    yield lambda p: p.s[p.b].pragma(p.i, "auto_unroll_max_step", "16")
    yield lambda p: p.s[p.b].pragma(p.i, "parallel_launch_point")
    yield lambda p: p.s[p.b].pragma(p.i, "unroll_explicit", 2)
    yield lambda p: p.s[p.b].prefetch(p.c, p.i, 1)
    yield lambda p: p.s[p.b].prefetch(p.a, p.i, 1.5)  # type: ignore[arg-type]
    yield lambda p: p.s[p.b].storage_align(p.k, 8, 0)
    yield lambda p: p.s[p.b].storage_align(p.i, 0, 0)
    yield lambda p: p.s[p.b].storage_align(p.i, 8, 8)
    yield lambda p: p.s[p.d].storage_align(p.d.op.axis[0], 8, 0)
    yield lambda p: p.s[p.d].double_buffer()
    yield lambda p: p.s[p.b].tensorize(p.i, 7)  # type: ignore[arg-type]


def at_lowering() -> Iterator[Mistake]:
    yield lambda p: p.lower(p.a, p.b)
    yield then(
        lambda p: p.s[p.c].compute_at(p.s[p.d], p.d.op.axis[0]),
        lambda p: p.s[p.d].split(p.d.op.axis[0], factor=4),
        lambda p: p.lower(),
    )
    yield then(lambda p: p.s[p.b].compute_at(p.s[p.d], p.d.op.axis[0]), lambda p: p.lower())
    yield then(lambda p: p.s[p.b].double_buffer(), lambda p: p.lower(p.a, p.b, p.d))
    yield then(lambda p: p.s[p.b].storage_align(p.i, 8, 0), lambda p: p.lower(p.a, p.b, p.d))
    yield then(
        lambda p: p.s[p.b].double_buffer(),
        lambda p: p.s[p.b].compute_inline(),
        lambda p: p.lower(),
    )
    yield then(lambda p: p.s[p.b].compute_inline(), lambda p: p.lower(p.a, p.b, p.d))
    yield then(lambda p: p.s[p.b].set_scope("local"), lambda p: p.lower(p.a, p.b, p.d))
    yield lambda _: _vectors_of_symbolic_extent()


def _vectors_of_symbolic_extent() -> None:
    m = te.var("m")
    a = te.placeholder((m,), name="A")
    b = te.compute((m,), lambda i: a[i] * 2, name="B")
    s = te.create_schedule(b.op)
    s[b].vectorize(b.op.axis[0])
    mlc.lower(s, [a, b])


@pytest.mark.parametrize("mistakes", [at_the_call, at_lowering])
def test_messages(golden: Golden, mistakes: Callable[[], Iterator[Mistake]]) -> None:
    messages = []
    for mistake in mistakes():
        with pytest.raises(mlc.ScheduleError) as caught:
            mistake(Program())
        assert f"{__file__}:" in str(caught.value) or "not among the arguments" in str(caught.value)
        messages.append(re.sub(re.escape(__file__) + r":\d+", "user.py:1", str(caught.value)))
    golden("\n\n".join(messages), f"stage_refusals_{mistakes.__name__}")


def test_the_line_is_that_of_the_call() -> None:
    p = Program()
    with pytest.raises(mlc.ScheduleError) as caught:
        p.s[p.b].split(p.i)
    line = caught.traceback[0].lineno + 1
    assert f"{__file__}:{line}\n" in str(caught.value)


def test_a_refused_call_changes_nothing() -> None:
    p = Program()
    before = str(p.lower())
    for mistake in list(at_the_call())[:1]:
        with pytest.raises(mlc.ScheduleError):
            mistake(p)
    with pytest.raises(mlc.ScheduleError):
        p.s[p.c].vectorize(p.k)
    assert str(p.lower()) == before
    assert not p.s.is_scheduled
