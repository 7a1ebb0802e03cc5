"""Registered Python functions: what they are given, in the evaluator and on boards, and what is
said of those that fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import ExternalError, te
from mlc_deploy.graph import (
    BlockBuilder,
    ExternalCall,
    Function,
    Var,
    const,
    evaluate,
    external,
    lower_graph,
    op,
    register_func,
    tensor_type,
)
from mlc_deploy.graph.plan import Place
from mlc_deploy.ir import IRModule

Array = np.ndarray


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test's functions are its own."""
    monkeypatch.setattr(external, "_REGISTERED", {})


def test_registry() -> None:
    @mlc.register_func("env.twice")
    def twice(x: Array, out: Array) -> None: ...

    assert mlc.get_global_func("env.twice") is twice
    assert register_func("env.other", twice) is twice
    assert register_func("env.twice", print, override=True) is print
    assert mlc.get_global_func("env.twice") is print


def test_registry_refuses(golden: Callable[..., None]) -> None:
    register_func("env.linear", print)
    wrong: list[Callable[[], Any]] = [
        lambda: register_func("env.linear", print),
        lambda: register_func("env.x", 3),  # type: ignore[call-overload]
        lambda: register_func(print),  # type: ignore[call-overload]
        lambda: mlc.get_global_func("env.liner"),
        lambda: mlc.get_global_func("conv"),
    ]
    lines: list[str] = []
    for call in wrong:
        with pytest.raises(ExternalError) as caught:
            call()
        lines.append(str(caught.value).replace(repr(print), "print"))
    golden("\n".join(lines), "external_registry_refusals")


def packed(func: str, *shape: int, source: str = "") -> Function:
    """out = func(x, w), x given and w constant, all of a shape."""
    b = BlockBuilder()
    x = b.param("x", shape)
    w = const(np.full(shape, 2, np.float32), name="w")
    y = b.call_dps_packed(func, [x, w], x.type, name="y", source=source)
    return b.finish([y])


def test_arguments_are_contiguous_and_writable() -> None:
    seen: list[Array] = []

    @register_func("f")
    def multiply(x: Array, w: Array, out: Array) -> None:
        seen.extend((x, w, out))
        np.multiply(x, w, out=out)

    given = np.arange(6, dtype=np.float32).reshape(3, 2).T
    given.flags.writeable = False
    found = evaluate(packed("f", 2, 3), [given])
    np.testing.assert_array_equal(found["y"], given * 2)
    assert all(a.flags.c_contiguous and a.flags.writeable for a in seen)
    assert [a.shape for a in seen] == [(2, 3)] * 3


def test_a_function_may_return_its_output() -> None:
    register_func("f", lambda x, w, out: np.multiply(x, w, out=out))
    found = evaluate(packed("f", 2), [np.ones(2, np.float32)])
    np.testing.assert_array_equal(found["y"], [2, 2])


def _wrong_shape(x: Array, w: Array, out: Array) -> None:
    out[:] = np.ones(3, np.float32)


def _reshaped(x: Array, w: Array, out: Array) -> None:
    out.shape = (2, 1)


def _returned(x: Array, w: Array, out: Array) -> Array:
    return np.asarray(x + w)


def _raises(x: Array, w: Array, out: Array) -> None:
    raise RuntimeError("no luck")


def test_functions_that_fail(golden: Callable[..., None]) -> None:
    wrong: dict[str, Callable[..., Any]] = {
        "wrong.shape": _wrong_shape,
        "reshaped": _reshaped,
        "returned": _returned,
        "raises": _raises,
        "arguments": lambda x: None,
    }
    for name, function in wrong.items():
        register_func(name, function)
    lines: list[str] = []
    for name in [*wrong, "wrong.shap"]:
        with pytest.raises(ExternalError) as caught:
            evaluate(packed(name, 2), [np.ones(2, np.float32)])
        lines.append(str(caught.value))
    golden("\n".join(lines), "external_failures")


# -------------------------------------------------------------------------------------- programs


def mixed() -> tuple[IRModule, Callable[[Array], dict[str, Array]]]:
    """Registered functions first, between, and last, with outputs in the arena and the caller's
    memory; a view, an impure call, an unread output; and what it computes."""
    notes: list[Array] = []
    register_func("add", lambda x, y, out: np.add(x, y, out=out), override=True)
    register_func("note", lambda x: notes.append(x.copy()), override=True)

    @register_func("divmod", override=True)
    def divmod_(x: Array, quotient: Array, rest: Array) -> None:
        np.divmod(x, np.float32(2), quotient, rest)

    bb, x = BlockBuilder(), Var("x", tensor_type((4, 6)))
    w = const(np.arange(24, dtype=np.float32).reshape(4, 6), name="w")
    with bb.function("main", [x]):
        a = bb.call_dps_packed("add", [x, w], x.type)
        b = bb.emit_te(lambda t: te.compute(t.shape, lambda i, j: t[i, j] * 3.0), a)
        bb.call_dps_packed("note", [b], [], pure=False)
        c = bb.emit(op.relu(op.add(b, w)))
        d = bb.emit(op.reshape(c, shape=(24,)))
        q, r = bb.call_dps_packed("divmod", [d], [d.type, d.type])
        e = bb.emit(op.exp(op.negative(r)))
        f = bb.call_dps_packed("add", [e, q], e.type)
        bb.emit_func_output([f, q, e], names=["f", "q", "e"])

    def expected(given: Array) -> dict[str, Array]:
        notes.clear()
        b = (given + w.value) * 3
        q, r = np.divmod(np.maximum(b + w.value, 0).reshape(24), np.float32(2))
        return {"f": np.exp(-r) + q, "q": q, "e": np.exp(-r), "note": b}

    expected.notes = notes  # type: ignore[attr-defined]
    return bb.get(), expected


X = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)


def test_call_table_is_cut() -> None:
    module, _ = mixed()
    program = lower_graph(module["main"], module)
    assert [(e.name, e.at_call, e.outputs) for e in program.externals] == [
        ("add", 0, 1),
        ("note", 1, 0),
        ("divmod", 3, 2),
        ("add", 5, 1),
    ]
    first = program.externals[0]
    assert [p.space for p in first.args] == ["input", "weights", "arena"]
    assert program.externals[2].args[1] == Place("output", 1, 0, 96)
    assert first.line.endswith(
        '= R.call_dps_packed("add", (x, R.const(R.Tensor((4, 6), "float32"), name="w")), '
        'R.Tensor((4, 6), "float32"))'
    )


def check(board: Any, module: IRModule, expected: Any) -> Any:
    model = mlc.compile(module, "host" if board.board == "local://" else "armv7a")
    loaded = board.load(model)
    for given in (X, 2 * X):
        right = expected(given)
        outputs = loaded.run({"x": given})
        assert list(outputs) == ["f", "q", "e"]
        for name, found in outputs.items():
            np.testing.assert_allclose(found, right[name], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(expected.notes[0], right["note"], rtol=1e-6)
    return loaded


@pytest.fixture(params=["local://", "qemu://cortex-a7"])
def board(request: pytest.FixtureRequest) -> Iterator[Any]:
    with mlc.connect(request.param) as session:
        yield session


@pytest.mark.parametrize("shared", [True, False])
def test_on_boards(board: Any, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not shared:  # as on a board that is another machine
        monkeypatch.setattr(board.link.transport, "process", None)
    module, expected = mixed()
    loaded = check(board, module, expected)
    assert (loaded.arena.mapped() is not None) == shared
    half = loaded.profile({"x": X}, until=2)
    assert (len(half.run.nanoseconds), len(half.run.host_nanoseconds)) == (2, 2)


def test_local_functions_see_the_boards_memory() -> None:
    seen: list[tuple[int, Array]] = []

    @register_func("f")
    def take(x: Array, w: Array, out: Array) -> None:
        seen.append((x.__array_interface__["data"][0], out))
        np.multiply(x, w, out=out)

    with mlc.connect("local://") as session:
        loaded = session.load(mlc.compile(packed("f", 2, 64), "host"))
        for n in (1, 3):
            given = np.full((2, 64), n, np.float32)
            np.testing.assert_array_equal(loaded.run({"x": given})["y"], 2 * given)
        assert seen[0][0] == seen[1][0]  # nothing is copied: the same memory in every run
        loaded.run({"x": np.zeros((2, 64), np.float32)})
        np.testing.assert_array_equal(seen[0][1], 0)  # what was out is still the board's output


def test_deploy(board: Any) -> None:
    module, _ = mixed()
    model = mlc.compile(module, "host" if board.board == "local://" else "armv7a")
    done = mlc.deploy(model, board, {"x": X})
    assert done.ok and done.reference == "evaluate"
    names = [(layer.kernel, layer.on_host) for layer in done.layers]
    assert [name for name, on_host in names if on_host] == ["add", "note", "divmod", "add"]
    assert names[0] == ("add", True) and names[2] == ("note", True)
    assert all(layer.median_us is not None for layer in done.layers)
    counted = [layer.instructions is not None for layer in done.layers if not layer.on_host]
    assert counted == [board.counting] * 3
    assert done.timing.median > 0


def test_timed_on_the_host() -> None:
    register_func("f", lambda x, w, out: np.multiply(x, w, out=out))
    with mlc.connect("local://") as session:
        loaded = session.load(mlc.compile(packed("f", 2), "host"))
        timing = loaded.time({"x": np.ones(2, np.float32)}, number=2, repeat=3, min_repeat_ms=5)
    assert len(timing.samples) == 3
    assert all(s * n >= 5e-3 for s, n in zip(timing.samples, timing.number, strict=True))


def test_failure_on_a_board() -> None:
    register_func("raises", _raises)
    with mlc.connect("local://") as session:
        loaded = session.load(mlc.compile(packed("raises", 2, source="layer1"), "host"))
        with pytest.raises(ExternalError) as caught:
            loaded.run({"x": np.ones(2, np.float32)})
    assert str(caught.value) == (
        "'raises' raised RuntimeError: no luck\n"
        '  in:  y: R.Tensor((2,), "float32") = R.call_dps_packed("raises", (x, R.const([2.0, 2.0], '
        '"float32")), R.Tensor((2,), "float32"))  # layer layer1\n'
        "  try: outputs are the last arguments, and are written in place: out[:] = …"
    )


def test_torch_sees_the_same_memory() -> None:
    torch = pytest.importorskip("torch")

    @register_func("f")
    def multiply(x: Array, w: Array, out: Array) -> None:
        torch.mul(torch.from_dlpack(x), torch.from_dlpack(w), out=torch.from_dlpack(out))

    given = np.ones((3, 5), np.float32)
    with mlc.connect("local://") as session:
        loaded = session.load(mlc.compile(packed("f", 3, 5), "host"))
        np.testing.assert_array_equal(loaded.run({"x": given})["y"], 2 * given)
    np.testing.assert_array_equal(evaluate(packed("f", 3, 5), [given])["y"], 2 * given)


def test_external_call_is_a_host_call() -> None:
    from mlc_rpc.host_call import HostCall

    register_func("f", lambda x, out: np.copyto(out, x))
    place = Place("arena", 0, 0, 8)
    types = (tensor_type((2,)), tensor_type((2,)))
    call: HostCall = ExternalCall("f", "f_0", 0, (place, place), types, 1, "out = f(x)")
    out = np.zeros(2, np.float32)
    call(np.ones(2, np.float32), out)
    assert out.all()
