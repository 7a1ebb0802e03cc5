"""Kernels of a program: the same bytes from workers, from the cache, and for any hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.driver.kernels import CompiledKernels, _is_own, compile_sources
from mlc_deploy.driver.processes import FEW
from mlc_deploy.graph.lower import KernelSource
from mlc_deploy.ir import Call
from mlc_deploy.ops import OPERATORS, OWN_INTRINS
from mlc_deploy.passes.instruments import TimingInstrument
from mlc_deploy.schedule import tensor_intrin
from mlc_targets import Target
from tests.driver.worker_tasks import compile_or_abort

TARGET = Target("aarch64")
DIGITS = Path(mlc.__file__).parent / "models" / "digits_cnn.onnx"
NO_CACHE = {"compile.cache": False}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("MLC_CACHE_DIR", str(tmp_path))
    yield tmp_path


def gathers(count: int = FEW + 1) -> dict[str, KernelSource]:
    """Kernels that pick elements of a buffer by the indices in another, each of another size and
    with a factor of its own, so that no two share a function."""
    found = {}
    for n in range(count):
        x, y = te.placeholder((16,), name="x"), te.placeholder((16 * (n + 1),), "int32", "y")
        z = te.compute(y.shape, lambda i, x=x, y=y, n=n: x[y[i]] * (n + 1.5), name="z")
        found[f"gather{n}"] = KernelSource(f"gather{n}", te.create_prim_func([x, y, z]))
    return found


def compiled(
    sources: dict[str, KernelSource], workers: int = 1, target: Target = TARGET
) -> CompiledKernels:
    return compile_sources(sources, target, {}, workers)


def test_second_time_from_the_cache() -> None:
    first, second = compiled(gathers()), compiled(gathers())
    assert (first.cached, second.cached) == (0, FEW + 1)
    assert first.objects == second.objects
    assert list(second.objects) == [f"gather{n}" for n in range(FEW + 1)]
    assert compiled(gathers(FEW + 3)).cached == FEW + 1


def test_workers_make_the_same() -> None:
    with mlc.PassContext(config=NO_CACHE):
        assert compiled(gathers()).objects == compiled(gathers(), workers=2).objects


def test_what_workers_made_is_kept() -> None:
    assert compiled(gathers(), workers=2).cached == 0
    assert compiled(gathers()).cached == FEW + 1


@pytest.mark.parametrize("name", ["armv7a", "aarch64", "host"])
def test_the_cache_serves_every_target(name: str) -> None:
    made = [compiled(gathers(2), target=Target(name)) for _ in range(2)]
    assert [m.cached for m in made] == [0, 2] and made[0].objects == made[1].objects


def test_a_damaged_entry_is_compiled_again(own_cache: Path) -> None:
    first = compiled(gathers(2))
    for path in (own_cache / "kernels").glob("*/*"):
        path.write_bytes(path.read_bytes()[:-1])
    again = compiled(gathers(2))
    assert again.cached == 0 and again.objects == first.objects


def test_what_decides_the_code_decides_the_key() -> None:
    compiled(gathers(1))
    assert compiled(gathers(1), target=Target("armv7a")).cached == 0
    assert compiled(gathers(1), target=Target("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76")) \
        .cached == 0  # fmt: skip
    for context in (
        mlc.PassContext(opt_level=0),
        mlc.PassContext(disabled_pass=["unroll_registers"]),
        mlc.PassContext(config={"lower.auto_unroll": 1}),
    ):
        with context:
            assert compiled(gathers(1)).cached == 0
            assert compiled(gathers(1)).cached == 1
    with mlc.PassContext(disabled_pass=["fold_constants"]):  # a pass of graphs
        assert compiled(gathers(1)).cached == 1


def test_names_of_parameters_decide_the_key() -> None:
    """The object's metadata says them."""
    compiled(gathers(1))
    a, b = te.placeholder((16,), name="a"), te.placeholder((16,), "int32", "b")
    z = te.compute((16,), lambda i: a[b[i]], name="z")
    found = compiled({"s": KernelSource("s", te.create_prim_func([a, b, z]))})
    assert found.cached == 0
    assert [p["name"] for p in found.objects["s"].signature["params"]] == ["a", "b", "z"]


def test_a_layer_is_found_in_another_model() -> None:
    """Neither the model's name nor those of its values and layers are part of the key."""

    def model(name: str, more: bool) -> mlc.graph.Function:
        builder = mlc.graph.BlockBuilder(name)
        x = builder.param(f"{name}.in", (4, 24))
        w = np.full((24, 24), 0.1, np.float32)
        for n in range(1 + more):
            x = builder.emit("dense", x, mlc.graph.const(w + n), transpose_b=False)
            x = builder.emit("relu", x, name=f"{name}.{n}", source=f"{name}.layer{n}")
        return builder.finish([builder.emit("exp", x) if more else x], [f"{name}.out"])

    alone = mlc.compile(model("one", False), TARGET)
    assert (alone.kernels_compiled, alone.kernels_cached) == (1, 0)
    other = mlc.compile(model("another", True), TARGET)
    assert (other.kernels_compiled, other.kernels_cached) == (1, 1)  # dense_relu_exp, dense_relu


def test_the_context_reaches_workers() -> None:
    plain = compiled(gathers()).objects
    with mlc.PassContext(config={"lower.bound_check": True, **NO_CACHE}):
        checked = compiled(gathers()).objects
        assert compiled(gathers(), workers=2).objects == checked != plain


def test_passes_that_are_watched_run_here() -> None:
    compiled(gathers(2))
    timing = TimingInstrument()
    with mlc.PassContext(instruments=[timing]):
        assert compiled(gathers(2)).cached == 0
    assert timing.runs["vectorize_loops"] == 2


def test_operators_of_the_user_are_compiled_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache and the workers know them by name only."""
    monkeypatch.setitem(OPERATORS, "double_relu", OPERATORS["relu"])
    builder = mlc.graph.BlockBuilder()
    with builder.function("main"):
        x = builder.param("x", (16,))
        function = builder.emit_func_output(builder.emit("double_relu", x))
    for _ in range(2):
        model = mlc.compile(function, TARGET)
        assert (model.kernels_compiled, model.kernels_cached) == (1, 0)


def test_intrinsics_of_the_user_are_compiled_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they need of a CPU is not known elsewhere."""
    own = min((i for i in OWN_INTRINS if i.calls), key=lambda i: i.name)
    x = te.placeholder((4,), "int32", "x")
    call = Call(min(own.calls), (x[0], x[0]), "int32")
    source = KernelSource("s", te.create_prim_func([x, te.compute((4,), lambda i: call)]))
    assert _is_own(source)
    monkeypatch.setattr(tensor_intrin, "_REGISTRY", {"mine": replace(own, name="mine")})
    assert not _is_own(source)


def test_llvm_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it has no instruction for something, it gives up."""
    monkeypatch.setattr("mlc_deploy.driver.kernels.compile_unit", compile_or_abort)
    with pytest.raises(mlc.CodegenError) as caught:
        compile_sources(gathers(), TARGET, {"gather4": ["conv1", "conv2"]}, 2)
    lines = str(caught.value).splitlines()
    assert lines[0] == "the process that compiled kernel 'gather4' ended with SIGABRT"
    assert lines[1] == "  in:  layers conv1, conv2"
    assert lines[2].startswith("       LLVM ERROR: Cannot select: intrinsic %llvm.arm.neon")
    assert lines[-1] == "  try: PassContext(opt_level=0), or a target with other features"


SEEDED = """
import hashlib, sys
import mlc_deploy as mlc
from tests.driver.test_kernels import gathers
from mlc_deploy.driver.kernels import compile_sources
with mlc.PassContext(config={"compile.cache": False}):
    model = mlc.compile(sys.argv[2], "armv7a")
    print(hashlib.sha256(model.object_bytes).hexdigest())
    kernels = compile_sources(gathers(), mlc.Target("aarch64"), {}, int(sys.argv[1])).objects
    print(hashlib.sha256(repr(kernels).encode()).hexdigest())
"""


def test_the_same_bytes_for_any_hash_seed_and_number_of_workers() -> None:
    path = os.pathsep.join(filter(None, sys.path))
    found = {
        subprocess.run(
            [sys.executable, "-c", SEEDED, workers, str(DIGITS)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed, workers in (("1", "1"), ("77", "2"))
    }
    assert len(found) == 1 and len(found.pop().split()) == 2


def test_entries_with_a_right_digest_and_wrong_content(own_cache: Path) -> None:
    """They count as not there: the kernel is compiled."""
    import random

    import msgpack

    from mlc_deploy.driver.cache import Cache
    from mlc_deploy.driver.kernels import packed, unpacked

    (good,) = compiled(gathers(1)).objects.values()
    entry = packed([good])
    assert unpacked(entry, TARGET) == (good,)
    signature = dict(good.signature)
    (other,) = compiled(gathers(1), target=Target("armv7a")).objects.values()
    wrong = [
        b"", b"\xc1", msgpack.packb(3), msgpack.packb([]), msgpack.packb([good.code]),
        msgpack.packb([good.code, {}]), msgpack.packb([b"", signature]), packed([other]),
        msgpack.packb([good.code[:200], signature]), msgpack.packb(["text", signature]),
        msgpack.packb([good.code, signature | {"params": 3}]),
        msgpack.packb([good.code, signature | {"tasks": None}]),
        msgpack.packb([good.code, signature | {"scalars": [3]}]),
        msgpack.packb([good.code, signature, signature]), b"\x91" * 5000,
    ]  # fmt: skip
    assert [unpacked(content, TARGET) for content in wrong] == [None] * len(wrong)
    draw = random.Random(1)
    for _ in range(2000):
        data = bytearray(entry)
        for _ in range(draw.randrange(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        unpacked(bytes(data), TARGET)  # a kernel or none, and nothing else
    store = Cache(own_cache / "kernels")
    keys = (bytes.fromhex(p.parent.name + p.name) for p in store.folder.glob("*/*"))
    (key,) = (key for key in keys if store.get(key) == entry)
    store.put(key, wrong[5])
    again = compiled(gathers(1))
    assert again.cached == 0 and again.objects == {"gather0": good}
