"""Models that use what they compute twice, again and again: imported and compiled in proportion."""

from __future__ import annotations

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.errors import ImporterError
from mlc_deploy.frontend import from_onnx, onnx_import
from mlc_deploy.graph.evaluate import evaluate
from mlc_deploy.graph.fuse import MOST_CALLS, fuse_operators
from mlc_deploy.graph.nodes import CallFused
from mlc_deploy.ir import Store, statements, walk
from tests.models.growth import GRAPHS, SHAPE, expanding, mixed, nested

MOST_NODES = 5_000  # of a kernel's expressions


@pytest.mark.parametrize(("name", "count"), [
    ("doubled", 1_000), ("gated", 200), ("powers", 64), ("looped", 1_000), ("nested", 30),
    ("mixed", 60),
])  # fmt: skip
@pytest.mark.parametrize("target", ["aarch64", "armv7a"])
def test_it_compiles(name: str, count: int, target: str) -> None:
    compiled = mlc.compile(from_onnx(GRAPHS[name].make(count)), target, workers=0)
    assert len(compiled.object_bytes) < 64 << 10
    for kernel in compiled.library.kernels:
        stores = (s for s in statements(kernel.body) if isinstance(s, Store))
        assert all(sum(1 for _ in walk(s.value)) < MOST_NODES for s in stores)


def test_the_same_call_of_a_function_is_read_once() -> None:
    assert len(from_onnx(nested(30)).bindings) == 30


def test_what_functions_become_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(from_onnx(expanding(8)).bindings) == 2**7
    monkeypatch.setattr(onnx_import, "MOST_EXPANDED", 1_000)
    with pytest.raises(ImporterError) as refused:
        from_onnx(expanding(30))
    assert str(refused.value) == (
        "functions and loops make more than 1000 nodes of this model\n"
        "  in:  the model, node 'f29_0'\n"
        "  try: fewer iterations of loops, or functions that call others less often"
    )


def test_fusion_ends_where_elements_would_be_computed_in_too_many_ways() -> None:
    fused = fuse_operators(from_onnx(mixed(20)))
    sizes = [len(b.call.function.bindings) for b in fused.bindings if isinstance(b.call, CallFused)]
    assert sum(sizes) == 3 * 20
    # a sum and two gathers per level, of which the second is asked at two indices, the next at four
    assert max(sizes) == 3 * 4 and 3 * (1 + 2 + 4 + 8) <= MOST_CALLS < 3 * (1 + 2 + 4 + 8 + 16)


def test_what_is_read_at_one_index_twice_counts_once() -> None:
    fused = fuse_operators(from_onnx(GRAPHS["doubled"].make(2 * MOST_CALLS)))
    assert len(fused.bindings) == 2


@pytest.mark.parametrize("name", ["doubled", "gated", "powers", "mixed", "nested"])
def test_numbers(name: str) -> None:
    x = np.linspace(-3, 3, SHAPE[0]).astype("int64" if name == "powers" else "float32")
    function = from_onnx(GRAPHS[name].make(7))
    (wanted,) = evaluate(function, [x]).values()
    with mlc.connect("local://") as board:
        (got,) = board.load(mlc.compile(function, "host", workers=0)).run({"x0": x}).values()
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-4)
