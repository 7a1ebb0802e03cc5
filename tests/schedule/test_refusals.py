"""Every way in which a primitive refuses, one golden file per primitive."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mlc_deploy.errors import ScheduleError
from mlc_deploy.schedule import Schedule, caching, location, loops, notes, reduction, tree
from tests.schedule.draws import Step
from tests.schedule.small_programs import (
    Program,
    addressed,
    an_argument,
    backwards,
    chain,
    chosen,
    diamond,
    elsewhere,
    endless,
    in_vectors,
    matmul,
    neighbours,
    normalized,
    outer_sum,
    padded,
    repeated,
    rows,
    scan,
    stencil,
    summed,
    summed_so_far,
    symbolic,
    triangle,
    two_results,
    unread,
    vast,
)

Case = tuple[Program, list[Step]]


def case(program: Program, *steps: tuple[Any, ...]) -> Case:
    """A program and steps of which the last is refused."""
    return program, [(name, tuple(args)) for name, *args in steps]


REFUSALS: dict[str, list[Case]] = {
    "split": [
        case(chain, ("split", "x", (None, 4))),
        case(chain, ("split", "j", (4,))),
        case(chain, ("split", "j", (None, None))),
        case(chain, ("split", "j", (None, 0))),
        case(chain, ("split", "j", (2, 5))),
        case(symbolic, ("split", "i", (8, 4))),
        case(chain, ("vectorize", "j"), ("split", "j", (None, 4))),
        case(chain, ("split", "j", (None, 5), True, True)),
    ],
    "fuse": [
        case(chain, ("fuse", "i")),
        case(chain, ("fuse", "i", "x")),
        case(chain, ("fuse", "j", "i")),
        case(chain, ("compute_at", "B", "i_1"), ("fuse", "i_1", "j_1")),
        case(chain, ("parallel", "i"), ("fuse", "i", "j")),
        case(triangle, ("fuse", "i", "j")),
        case(endless, ("fuse", "i", "j")),
        case(vast, ("fuse", "i", "j")),
    ],
    "reorder": [
        case(chain, ("reorder", "i", "i")),
        case(chain, ("reorder", "i", "x")),
        case(chain, ("reorder", "i", "j_1")),
        case(chain, ("compute_at", "B", "i_1"), ("reorder", "j_1", "i_1")),
        case(triangle, ("reorder", "j", "i")),
        case(scan, ("reorder", "j", "i")),
        case(elsewhere, ("reorder", "k", "i")),
        case(
            matmul,
            ("fuse", "j", "k"),
            ("split", "j_k_fused", (None, 12)),
            ("reorder", "j_k_fused_1", "j_k_fused_0"),
        ),
        case(
            normalized,
            ("compute_at", "top", "j"),
            ("compute_at", "less", "j_1"),
            ("reorder", "k", "j"),
        ),
    ],
    "parallel": [
        case(chain, ("parallel", "x")),
        case(matmul, ("parallel", "k")),
        case(scan, ("parallel", "i")),
        case(summed, ("parallel", "i")),
        case(neighbours, ("parallel", "i")),
        case(two_results, ("compute_at", "B", "i_1"), ("parallel", "i_2")),
    ],
    "vectorize": [
        case(symbolic, ("vectorize", "i")),
        case(matmul, ("vectorize", "k")),
        case(chain, ("vectorize", "j"), ("vectorize", "i")),
        case(normalized, ("compute_at", "top", "j"), ("vectorize", "j")),
        case(in_vectors, ("vectorize", "i")),
    ],
    "unroll": [
        case(chain, ("unroll", "x")),
        case(symbolic, ("unroll", "i")),
    ],
    "add_unit_loop": [case(chain, ("add_unit_loop", "x"))],
    "annotate": [
        case(chain, ("annotate", "x", "key", 1)),
        case(chain, ("annotate", "j", "pragma_unrol_explicit", 1)),
        case(chain, ("annotate", "j", "pragma_import_c", "int f(void);")),
        case(chain, ("annotate", "j", "prefetch", "A")),
        case(chain, ("annotate", "j", "prefetch_next", "A")),
        case(chain, ("annotate", "B", "double_buffer_scope", "B")),
        case(chain, ("annotate", "B", "buffer_dim_align", [[0, 0]])),
        case(chain, ("annotate", "B", "double_buffer_scope", 0)),
    ],
    "storage_align": [
        case(chain, ("storage_align", "B", 1, 0, 8, 0)),
        case(chain, ("storage_align", "C", 0, 0, 8, 0)),
        case(chain, ("storage_align", "B", 0, 2, 8, 0)),
        case(chain, ("storage_align", "B", 0, 0, 8, 9)),
    ],
    "bind": [case(chain, ("bind", "i", "blockIdx.x")), case(chain, ("bind", "j", "threadIdx.x"))],
    "work_on": [case(chain, ("work_on", "other"))],
    "compute_inline": [
        case(chain, ("compute_inline", "X")),
        case(matmul, ("compute_inline", "C")),
        case(chain, ("compute_inline", "C")),
        case(chain, ("split", "j", (None, 5)), ("compute_inline", "B")),
        case(
            chain,
            ("transform_layout", "B", "B", "lambda i, j: [i, j // 4, j % 4]"),
            ("compute_inline", "B"),
        ),
        case(unread, ("compute_inline", "B")),
        case(repeated, ("compute_inline", "B")),
        case(addressed, ("compute_inline", "B")),
    ],
    "reverse_compute_inline": [
        case(chain, ("reverse_compute_inline", "B")),
        case(diamond, ("reverse_compute_inline", "D")),
        case(matmul, ("reverse_compute_inline", "D")),
        case(diamond, ("reverse_compute_inline", "C")),
        case(chain, ("split", "j_1", (None, 5)), ("reverse_compute_inline", "C")),
        case(stencil, ("reverse_compute_inline", "C")),
        case(padded, ("reverse_compute_inline", "C")),
    ],
    "compute_at": [
        case(chain, ("compute_at", "X", "i_1")),
        case(chain, ("compute_at", "B", "x")),
        case(matmul, ("decompose_reduction", "C", "k"), ("compute_at", "C", "i_1")),
        case(chain, ("compute_at", "B", "i")),
        case(chain, ("compute_at", "B", "i_1", (2,))),
        case(chain, ("parallel", "i"), ("compute_at", "B", "i_1")),
        case(chain, ("compute_at", "C", "i")),
        case(diamond, ("compute_at", "B", "i_1")),
        case(
            chain,
            ("transform_layout", "B", "B", "lambda i, j: [i, j // 4, j % 4]"),
            ("compute_at", "B", "i_1"),
        ),
        case(
            matmul,
            ("split", "k", (None, 3)),
            ("rfactor", "k_1", 0),
            ("compute_at", "C_rf", "k_1_1"),
        ),
        case(normalized, ("vectorize", "j"), ("compute_at", "top", "j")),
        case(summed_so_far, ("compute_at", "B", "j")),
        case(unread, ("compute_at", "B", "j")),
        case(an_argument, ("compute_at", "B", "i_1")),
        case(an_argument, ("compute_at", "B", "j_1")),
    ],
    "reverse_compute_at": [
        case(chain, ("reverse_compute_at", "B", "i_1")),
        case(matmul, ("decompose_reduction", "C", "i"), ("reverse_compute_at", "D", "i")),
        case(matmul, ("reverse_compute_at", "D", "k")),
        case(outer_sum, ("reverse_compute_at", "Z", "i")),
        case(
            chain,
            ("fuse", "i", "j"),
            ("split", "i_j_fused", (None, 5)),
            ("reverse_compute_at", "C", "i_j_fused_0"),
        ),
        case(stencil, ("reverse_compute_at", "C", "i")),
        case(padded, ("reverse_compute_at", "C", "i")),
    ],
    "decompose_reduction": [
        case(backwards, ("decompose_reduction", "B", "k")),
        case(chain, ("decompose_reduction", "C", "i_1")),
        case(matmul, ("decompose_reduction", "C", "i_1")),
        case(
            matmul,
            ("reorder", "k", "i", "j"),
            ("decompose_reduction", "C", "i"),
        ),
        case(normalized, ("compute_at", "top", "j"), ("decompose_reduction", "top", "j")),
        case(
            rows,
            ("fuse", "i", "k"),
            ("split", "i_k_fused", (None, 7)),
            ("decompose_reduction", "S", "i_k_fused_0"),
        ),
    ],
    "cache_read": [
        case(chain, ("cache_read", "C", 0, "shared")),
        case(chain, ("cache_read", "C", 1, "local")),
        case(
            chain,
            ("compute_at", "B", "j_1"),
            ("cache_read", "C", 0, "local"),
        ),
    ],
    "cache_write": [
        case(chosen, ("cache_write", "C", 0, "local")),
        case(matmul, ("cache_write", "C", 1, "local")),
        case(matmul, ("decompose_reduction", "C", "k"), ("cache_write", "C", 0, "local")),
        case(chain, ("compute_at", "B", "i_1"), ("cache_write", "B", 0, "local")),
    ],
    "set_scope": [case(chain, ("set_scope", "C", 0, "local"))],
}


def prepared(program: Program, steps: list[Step]) -> Schedule:
    sch = Schedule(program())
    for name, args in steps:
        getattr(sch, name)(*args)
    return sch


def refusal(program: Program, steps: list[Step]) -> str:
    """The steps and the message of the last."""
    sch = prepared(program, steps[:-1])
    before, trace = sch.func, str(sch.trace)
    name, args = steps[-1]
    with pytest.raises(ScheduleError) as caught:
        getattr(sch, name)(*args)
    assert sch.func is before and str(sch.trace) == trace, f"{name} changed the program"
    code = [f"sch.{n}({', '.join(map(repr, a))})" for n, a in steps]
    return "\n".join([f"# {program.__name__}", *code, str(caught.value)])


@pytest.mark.parametrize("primitive", REFUSALS)
def test_refusals(primitive: str, golden: Callable[..., None]) -> None:
    text = "\n\n".join(refusal(program, steps) for program, steps in REFUSALS[primitive])
    golden(text, f"refused_{primitive}")


# Refusals that other tests reach: of blocks in blocks, and rfactor's.
ELSEWHERE = (
    "rfactor",
    "_combiner",
    "_require_parts",
    "_skipping_parts",
    "require_leaf",
    "find_outermost",
)


def test_every_refusal_is_shown() -> None:
    """Each `refuse(…)` of these modules is reached by a case above."""
    modules = (loops, location, notes, reduction, caching, tree)
    reached: set[tuple[str, int]] = set()
    original = tree.refuse

    def recording(*args: Any, **kwargs: Any) -> None:
        frame = sys._getframe(1)
        reached.add((frame.f_globals["__name__"], frame.f_lineno))
        original(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(module, "refuse", recording)
        for program, steps in (c for cases in REFUSALS.values() for c in cases):
            with pytest.raises(ScheduleError):
                prepared(program, steps)
    missed = [
        f"{module.__name__}:{first} in {function}"
        for module in modules
        for function, first, last in _refusals_in(module)
        if function not in ELSEWHERE
        and not any((module.__name__, line) in reached for line in range(first, last + 1))
    ]
    assert not missed, "\n".join(missed)


def _refusals_in(module: Any) -> Iterator[tuple[str, int, int]]:
    """(function, first line, last line) of each call of refuse."""
    for function in ast.walk(ast.parse(Path(module.__file__).read_text())):
        if isinstance(function, ast.FunctionDef):
            for call in ast.walk(function):
                named = isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
                if named and call.func.id == "refuse":  # type: ignore[attr-defined]
                    yield function.name, call.lineno, call.end_lineno  # type: ignore[attr-defined]
