"""Attention in tiles: against its definition by numpy, on boards, and what it costs."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mlc_deploy as mlc
from mlc_deploy.graph import BlockBuilder, Function, Value
from mlc_deploy.ir.interp import run
from mlc_deploy.ops import TensorType, compute, evaluate
from mlc_deploy.ops.strategy import best_plan
from mlc_deploy.te import create_prim_func, placeholder
from mlc_targets import Target
from tests.sessions import TARGETS, aarch64, armv7, board_named, local

if TYPE_CHECKING:
    from mlc_rpc import Session

__all__ = ["aarch64", "armv7", "local"]  # fixtures

Array = NDArray[Any]
Call = tuple[list[Array], dict[str, Any]]
CORTEX_A76 = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76 -device=arm_cpu")
DRAWN = 7  # calls of one model
# Instructions per multiplication of vectors, of one query whose head three others share, over 512
# keys, and of 197 queries: those of loads, exponents and sums included.
MOST = {"aarch64": (1.7, 1.9), "armv7": (2.5, 2.7)}


def call(
    batch: int, heads: int, kept: int, count: int, length: int, width: int, values: int,
    bias: tuple[int, ...] = (), kind: str = "float32", seed: int = 0, queries: str = "float32",
    **attrs: Any,
) -> Call:  # fmt: skip
    rng = np.random.default_rng(seed)
    first = attrs.get("heads_first", (True,) * 4)
    most = length + rng.integers(0, 9) if "rows" in attrs else length
    shapes = [(batch, heads, count, width), (batch, kept, most, width), (batch, kept, most, values)]
    kinds = [queries, kind, kind]
    arrays = []
    for (b, h, n, w), own, dtype in zip(shapes, first, kinds, strict=False):
        shape = (b, h, n, w) if own else (b, n, h, w)
        arrays.append(rng.standard_normal(shape).astype(dtype))
    if bias:
        arrays.append(rng.standard_normal(bias).astype("float32"))
    return arrays, {"scale": width**-0.5, **attrs}


def drawn(rng: Random, all_of: str = "") -> Call:
    """Of random shapes; all_of: a dtype of queries, too."""
    kept, group, count = rng.choice((1, 2, 3)), rng.choice((1, 2, 4)), rng.choice((1, 1, 2, 7, 19))
    length = count + rng.choice((0, 1, 3, 40, 63, 64, 90))
    attrs: dict[str, Any] = {}
    if rng.random() < 0.5:
        attrs["causal"] = True
    if rng.random() < 0.3:
        attrs |= {"causal": True, "window": rng.choice((1, 5, 70))}
    if rng.random() < 0.4:
        attrs["rows"] = length
    if rng.random() < 0.3:
        attrs["softcap"] = 2.0
    if rng.random() < 0.4:
        attrs["heads_first"] = tuple(rng.random() < 0.5 for _ in range(4))
    heads, batch = kept * group, rng.choice((1, 2))
    extents = ((1, batch), (1, heads), (1, count), (1, length))
    bias = tuple(map(rng.choice, extents)) if rng.random() < 0.4 else ()
    width, values = rng.choice((8, 16, 64)), rng.choice((8, 32, 80))
    kind = all_of or rng.choice(("float32", "float32", "float16"))
    return call(batch, heads, kept, count, length, width, values, bias, kind,
                rng.randrange(1 << 30), all_of or "float32", **attrs)  # fmt: skip


def model(calls: list[Call]) -> tuple[Function, dict[str, Array]]:
    builder, given, outputs = BlockBuilder("attentions"), dict[str, Array](), list[Value]()
    for number, (arrays, attrs) in enumerate(calls):
        names = [f"x{number}_{n}" for n in range(len(arrays))]
        given |= dict(zip(names, arrays, strict=True))
        params = [
            builder.param(n, a.shape, str(a.dtype)) for n, a in zip(names, arrays, strict=True)
        ]
        outputs.append(builder.emit("attention", *params, **attrs))
    return builder.finish(outputs, [f"y{n}" for n in range(len(outputs))]), given


def test_the_definition() -> None:
    for seed in range(12):
        arrays, attrs = drawn(Random(seed))
        inputs = [placeholder(a.shape, str(a.dtype), f"x{n}") for n, a in enumerate(arrays)]
        (out,) = compute("attention", inputs, attrs)
        if np.prod(arrays[1].shape) > 1500:
            continue
        func = create_prim_func([*inputs, out], "attention")
        found = np.zeros([int(n) for n in out.shape], out.dtype)  # type: ignore[arg-type]
        run(func, *arrays, found)
        (wanted,) = evaluate("attention", arrays, attrs)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_nothing_behind_a_tensor_is_read(seed: int, local: Session) -> None:
    """The rows of a last block, and the keys of a last tile, that are not there; of the bias, too.
    The first call is a vision transformer's with a mask."""
    rng = Random(f"bounds {seed}")
    whole = call(1, 2, 2, 197, 197, 64, 64, (1, 1, 197, 197))
    calls = [whole, *(drawn(rng) for _ in range(DRAWN))]
    function, given = model(calls)
    with mlc.PassContext(config={"lower.bound_check": True}):
        compiled = mlc.compile(function, "host")
    found = local.load(compiled).run(given)
    for name, wanted in compiled.evaluate(given).items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-3, atol=1e-3)


def test_numpys_definition_is_softmax() -> None:
    """Of queries that share heads, which see what was before them."""
    (q, k, v), attrs = call(1, 4, 2, 3, 5, 8, 8, causal=True)
    (y,) = evaluate("attention", [q, k, v], attrs)
    for head in range(4):
        for s in range(3):
            seen = s + 3
            x = k[0, head // 2, :seen] @ q[0, head, s] * attrs["scale"]
            parts = np.exp(x) / np.exp(x).sum()
            np.testing.assert_allclose(y[0, head, s], parts @ v[0, head // 2, :seen], rtol=1e-4)


@pytest.mark.parametrize("board", ["local", "armv7", "aarch64"])
def test_on_boards(board: str, request: pytest.FixtureRequest) -> None:
    session = board_named(request, board)
    rng = Random(board)
    calls = [drawn(rng) for _ in range(DRAWN)]
    function, given = model(calls)
    made = session.load(mlc.compile(function, TARGETS[board])).run(given)
    for number, (arrays, attrs) in enumerate(calls):
        (wanted,) = evaluate("attention", arrays, attrs)
        said = f"{[a.shape for a in arrays]} {attrs}"
        np.testing.assert_allclose(made[f"y{number}"], wanted, rtol=1e-3, atol=1e-4, err_msg=said)


def test_float16_multiplies_float16() -> None:
    """Where a machine computes with it: rows and keys of every remainder, masks among them; few
    instructions; and what numbers of float16 allow."""
    rng = Random(3)
    calls = [drawn(rng, "float16") for _ in range(4)]
    calls.append(call(1, 3, 3, 197, 197, 64, 64, kind="float16", queries="float16"))
    function, given = model(calls)
    with mlc.connect("qemu://cortex-a76") as session:
        done = mlc.deploy(mlc.compile(function, CORTEX_A76), session, given)
    for number, (arrays, attrs) in enumerate(calls):
        (wanted,) = (y.astype(np.float32) for y in evaluate("attention", arrays, attrs))
        off = np.abs(done.outputs[f"y{number}"].astype(np.float32) - wanted)
        said = f"{[a.shape for a in arrays]} {attrs}: {off.max()}"
        assert (off <= 5e-3 * np.abs(wanted) + 2e-3 * np.abs(wanted).max()).all(), said
    counted = done.layers[-1].instructions
    if counted is not None:
        assert counted < 2.5 * (3 * 197 * 197 * 128 / 8)


def test_large_scores_and_keys_that_do_not_count(local: Session) -> None:
    """Exponents are of differences from the largest score; a bias of -inf takes a key out, also all
    keys of a tile."""
    arrays, attrs = call(1, 2, 1, 1, 200, 16, 16)
    arrays[0] *= 300
    bias = np.zeros((1, 1, 1, 200), np.float32)
    bias[..., :130] = -np.inf
    arrays.append(bias)
    function, given = model([(arrays, attrs)])
    found = session_run(local, function, given)
    own = [arrays[0], arrays[1][:, :, 130:], arrays[2][:, :, 130:]]
    (wanted,) = evaluate("attention", own, attrs)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert np.isfinite(found).all()


def masked(count: int, length: int, at: int, window: int, low: float, seed: int = 0) -> Call:
    """A static cache of `length` rows, of which a mask shows what `count` queries from `at` on see:
    a window of keys, up to their own."""
    arrays, attrs = call(1, 4, 2, count, length, 16, 16, (1, 1, count, length), seed=seed)
    own, keys = at + np.arange(count)[:, None], np.arange(length)
    arrays[3][0, 0] = np.where((keys <= own) & (keys > own - window), arrays[3][0, 0], low)
    return arrays, attrs


def test_masks_of_static_caches(local: Session) -> None:
    """Tiles that no query sees are passed over, wherever they are, and whatever number hides."""
    lows = (-np.inf, float(np.finfo(np.float32).min), -65504.0)
    calls = [masked(n, 600, at, window, low, seed)
             for seed, (n, at, window, low) in enumerate((
                 (1, 0, 600, lows[0]), (1, 599, 600, lows[1]), (1, 400, 70, lows[2]),
                 (7, 300, 600, lows[0]), (19, 500, 100, lows[1])))]  # fmt: skip
    function, given = model(calls)
    made = local.load(mlc.compile(function, "host")).run(given)
    for number, (arrays, attrs) in enumerate(calls):
        (wanted,) = evaluate("attention", arrays, attrs)
        np.testing.assert_allclose(made[f"y{number}"], wanted, rtol=1e-3, atol=1e-4)


def test_what_a_mask_hides_costs_little(aarch64: Session) -> None:
    """Of 2,048 rows the 100th token reads two tiles; so does a window of 100 at any place."""
    function, _ = model([masked(1, 2048, 0, 2048, -np.inf)])
    module = aarch64.load(mlc.compile(function, TARGETS["aarch64"]))

    def count(at: int, window: int = 2048) -> int:
        counts = module.profile(model([masked(1, 2048, at, window, -np.inf)])[1]).run.counts
        assert counts is not None
        return sum(c.total for c in counts)

    whole = count(2047)
    assert count(100) < whole / 6 and count(2000, 100) < whole / 6


@pytest.mark.parametrize("board", ["local", "armv7"])
def test_rows_of_int8_with_scales(board: str, request: pytest.FixtureRequest) -> None:
    calls = []
    for seed, bias in enumerate(((), (1, 1, 3, 130))):
        arrays, attrs = call(1, 4, 2, 3, 130, 16, 32, bias, seed=seed)
        rng = np.random.default_rng(seed)
        k, v = (rng.integers(-127, 128, (1, 2, 150, w)).astype(np.int8) for w in (16, 32))
        scales = [rng.uniform(0.001, 0.02, (1, 2, 150, 1)).astype(np.float32) for _ in range(2)]
        attrs |= {"rows": 130, "scaled": True}
        calls.append(([arrays[0], k, v, *arrays[3:], *scales], attrs))
    function, given = model(calls)
    made = board_named(request, board).load(mlc.compile(function, TARGETS[board])).run(given)
    for number, (arrays, attrs) in enumerate(calls):
        (wanted,) = evaluate("attention", arrays, attrs)
        np.testing.assert_allclose(made[f"y{number}"], wanted, rtol=1e-3, atol=1e-4)
        q, k, v, *added, of_k, of_v = arrays
        plain = {n: a for n, a in attrs.items() if n != "scaled"}
        rows = [x * scale.astype(np.float64) for x, scale in ((k, of_k), (v, of_v))]
        (same,) = evaluate("attention", [q, *rows, *added], plain)
        np.testing.assert_allclose(wanted, same, rtol=1e-5)


def session_run(session: Session, function: Function, given: dict[str, Array]) -> Array:
    made: Array = session.load(mlc.compile(function, "host")).run(given)["y0"]
    return made


@pytest.mark.parametrize("board", MOST)
def test_what_it_costs(board: str, request: pytest.FixtureRequest) -> None:
    """Instructions, and that the plan's own count of them is no guess."""
    session = board_named(request, board)
    for (arrays, attrs), most in zip(
        (call(1, 4, 1, 1, 512, 64, 64), call(1, 1, 1, 197, 197, 64, 64)), MOST[board], strict=True
    ):
        function, given = model([(arrays, attrs)])
        loaded = session.load(mlc.compile(function, TARGETS[board]))
        counts = loaded.profile(given).run.counts
        assert counts is not None
        counted = sum(c.total for c in counts)
        q, k, _ = arrays
        ideal = q.shape[1] * q.shape[2] * k.shape[2] * 128 / 4
        assert counted <= most * ideal, counted / ideal
        types = [TensorType(a.shape, str(a.dtype)) for a in arrays]
        plan = best_plan("attention", types, attrs, Target(TARGETS[board]))
        assert plan is not None
        assert 0.75 < plan.cost / counted < 1.25, plan.cost / counted


def test_no_more_memory_for_more_keys() -> None:
    def scratch(length: int) -> int:
        function, _ = model([call(1, 8, 2, 16, length, 32, 32)])
        return int(mlc.compile(function, "aarch64").program.arena)

    assert scratch(2048) == scratch(256)


def test_refused() -> None:
    builder = BlockBuilder("refused")
    q = builder.param("q", (1, 3, 2, 8))
    k, v = (builder.param(n, (1, 2, 5, 8)) for n in "kv")
    with pytest.raises(
        ValueError, match=r"attention: float32\[1, 3, 2, 8\], float32\[1, 2, 5, 8\]"
    ):
        builder.emit("attention", q, k, v, scale=1.0)
    whole = builder.param("n", (1, 2, 5, 8), "int8")
    with pytest.raises(ValueError, match="attention: does not take"):
        builder.emit("attention", k, whole, v, scale=1.0)
