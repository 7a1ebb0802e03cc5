"""A value's result does not depend on its place: elementwise operators, casts and quantizations
give the same bits in every lane of a vector, in the tail behind the vectors, and in every thread's
part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mlc_deploy.driver.build import build
from mlc_deploy.graph import BlockBuilder
from mlc_deploy.graph.lower import lower_fused
from mlc_deploy.graph.nodes import Call
from mlc_deploy.ir import IRModule, PrimFunc, dtype_of, numpy_dtype, value_range
from mlc_deploy.ops import frozen_attrs
from mlc_deploy.ops.elementwise import TABLE
from mlc_deploy.ops.special import SPECIAL
from mlc_targets import Target
from tests.sessions import TARGETS, board_named

Array = NDArray[Any]
TAIL = 3  # elements that no vector of float32 has
SHORT = 64 + TAIL
LONG = (1 << 15) + TAIL  # several threads' parts
ATTRS: dict[str, dict[str, Any]] = {
    "clip": {"min": -1.5, "max": 2.5},
    "leaky_relu": {"alpha": 0.1},
    "thresholded_relu": {"alpha": 1.0},
    "elu": {"alpha": 1.0},
    "selu": {"alpha": 1.6732632, "gamma": 1.050701},
    "hard_sigmoid": {"alpha": 0.2, "beta": 0.5},
    "isinf": {"positive": True, "negative": True},
    "shrink": {"lambd": 0.5, "bias": 0.25},
    "mod": {"truncated": False},
}
FLOATS = ("float32", "float16", "float64")
INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
STORED = ("int8", "uint8", "int16", "uint16")


@dataclass(frozen=True, slots=True)
class Case:
    """An operator of special numbers of some dtypes, and of scalars after them."""

    op: str
    dtypes: tuple[str, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    scalars: tuple[Array, ...] = ()

    def __str__(self) -> str:
        more = (*self.attrs.values(), *(f"{s.dtype} {s}" for s in self.scalars))
        return " ".join([self.op, *self.dtypes, *map(str, more)])

    def program(self, length: int, target: str, name: str) -> PrimFunc:
        builder = BlockBuilder(name)
        data = [builder.param(f"x{n}", (length,), d) for n, d in enumerate(self.dtypes)]
        more = [builder.param(f"s{n}", s.shape, str(s.dtype)) for n, s in enumerate(self.scalars)]
        made = builder.emit(Call(self.op, (*data, *more), frozen_attrs(self.attrs)))
        return lower_fused(builder.finish([made]), Target(target), name)


def numbers(dtype: str) -> Array:
    """Ends, specials, denormals, ties, and where functions bend."""
    kind = dtype_of(dtype)
    if kind.kind == "bool":
        return np.array([False, True])
    if kind.is_integer:
        low, high = (int(v) for v in value_range(dtype))
        few = {low, low + 1, -7, -1, 0, 1, 2, 100, high - 1, high}
        return np.array(sorted(n for n in few if low <= n <= high), numpy_dtype(dtype))
    info: Any = np.finfo(dtype)
    sizes = [0.0, info.smallest_subnormal, info.tiny / 3, info.tiny, 0.5, 1, 1.5, 2.5, 20.3, 89.1]
    sizes += [127.5, 128.5, 255.5, 300.7, 32768.5, 2.0**31, 3e9, info.max, np.inf]
    with np.errstate(over="ignore"):
        positive = np.array(sizes).astype(info.dtype)
    return np.concatenate([positive, -positive, np.array([np.nan], info.dtype)])


def cases(dtype: str) -> Iterator[Case]:
    """All there are of a dtype of floats."""
    for entry in (*TABLE, *SPECIAL):
        if "float" in entry.kinds:
            yield Case(entry.name, (dtype,) * entry.inputs, ATTRS.get(entry.name, {}))
    for to in (*FLOATS, *INTEGERS, "bool"):
        if to != dtype:
            yield Case("cast", (dtype,), {"dtype": to})
    for stored in STORED:
        zero = np.array(3, stored)
        yield Case("quantize", (dtype,), {}, (np.array(0.5, dtype), zero))
        yield Case("dequantize", (stored,), {}, (np.array(0.1, dtype), zero))
        if dtype == "float32":
            yield Case("requantize", ("int32",), {}, (np.array(0.01, dtype), zero))
    for source in INTEGERS:
        yield Case("cast", (source,), {"dtype": dtype})


@pytest.mark.parametrize("length", [SHORT, pytest.param(LONG, marks=pytest.mark.numbers)])
@pytest.mark.parametrize(
    "dtype", ["float32", *(pytest.param(d, marks=pytest.mark.numbers) for d in FLOATS[1:])]
)
@pytest.mark.parametrize(
    "board",
    [pytest.param(b, marks=pytest.mark.numbers if b != "armv7" else ()) for b in TARGETS],
)
def test_places(board: str, dtype: str, length: int, request: pytest.FixtureRequest) -> None:
    session = board_named(request, board)
    named = {f"k{n}": case for n, case in enumerate(cases(dtype))}
    target = TARGETS[board]
    programs = {name: case.program(length, target, name) for name, case in named.items()}
    module = session.load(build(IRModule(programs), target=target, name="places"))
    wrong = []
    for name, case in named.items():
        first, *others = (numbers(d) for d in case.dtypes)
        columns = [first] if not others else [a.ravel() for a in np.meshgrid(first, *others)]
        if others:  # pairs: as many as there are numbers, and more where they meet themselves
            chosen = np.random.default_rng(3).permutation(len(columns[0]))[:61]
            columns = [c[chosen] for c in columns]
        found = results(session, module[name], case, columns, length)
        differ = [n for n, several in enumerate(found) if len(several) > 1]
        if differ:
            given = [c[differ[0]] for c in columns]
            wrong.append(f"{case}{given}: {found[differ[0]]} ({len(differ)} such)")
    module.close()
    assert not wrong, "\n".join(wrong)


def results(
    session: Any, function: Any, case: Case, columns: list[Array], length: int
) -> list[set[Any]]:
    """Of each number, its different results: each stands in the tail, and in all lanes before."""
    count = len(columns[0])
    found: list[set[Any]] = [set() for _ in range(count)]
    scalars = [session.tensor(s) for s in case.scalars]
    out = session.tensor(np.zeros(length, result_dtype(case)))
    for turn in range(0, count, TAIL):
        which = (np.arange(length) + turn) % count
        given = [session.tensor(c[which]) for c in columns]
        function(*given, *scalars, out)
        bits = out.numpy()
        if bits.dtype.kind == "f":
            nan = np.isnan(bits)
            bits = bits.view(f"u{bits.itemsize}").copy()
            bits[nan] = np.iinfo(bits.dtype).max
        for n, several in enumerate(found):
            several.update(np.unique(bits[which == n]).tolist())
        for tensor in given:
            tensor.close()
    for tensor in (*scalars, out):
        tensor.close()
    return found


def result_dtype(case: Case) -> Any:
    match case.op:
        case "cast":
            return numpy_dtype(case.attrs["dtype"])
        case "quantize" | "requantize":
            return case.scalars[1].dtype
        case "dequantize":
            return case.scalars[0].dtype
    entry = next(e for e in (*TABLE, *SPECIAL) if e.name == case.op)
    return np.dtype(bool) if entry.gives_bool else numpy_dtype(case.dtypes[0])
