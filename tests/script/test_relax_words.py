"""TVM's words in graphs: each computes what numpy does, reads back from its print, says what it
takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.errors import GraphError
from mlc_deploy.graph import (
    BlockBuilder,
    Function,
    Var,
    evaluate,
    named_constants,
    relax,
    tensor_type,
    verify,
)
from mlc_deploy.graph.shapeless import Shapeless
from mlc_deploy.script import from_script

Array = Any
SHAPES = {"x": (2, 3, 4), "y": (2, 3, 4), "v": (3,), "m": (4, 3), "i": (2, 3, 4), "b": (2, 3, 4)}
DTYPES = {"i": "int32", "b": "bool"}
IMAGE = {"d": (1, 4, 6, 5), "w": (8, 4, 3, 3), "g": (4, 1, 3, 3), "t": (4, 2, 2, 2), "c": (4,),
         "q": (1, 5, 2, 8)}  # fmt: skip
EVERY = {**SHAPES, **IMAGE}


def values(seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    made: dict[str, Array] = {}
    for name, shape in EVERY.items():
        match DTYPES.get(name, "float32"):
            case "bool":
                made[name] = rng.integers(0, 2, shape).astype(bool)
            case "int32":
                made[name] = rng.integers(-9, 9, shape).astype("int32")
            case dtype:
                made[name] = rng.uniform(0.1, 0.9, shape).astype(dtype)
    return made


def function(expression: str) -> Any:
    typed = ", ".join(f'{n}: R.Tensor({s}, "{DTYPES.get(n, "float32")}")' for n, s in EVERY.items())
    return from_script(f"@R.function\ndef main({typed}):\n    z = {expression}\n    return z\n")


def softmax(x: Array, axis: int) -> Array:
    power = np.exp(x - x.max(axis, keepdims=True))
    return power / power.sum(axis, keepdims=True)


def normalized(x: Array, axes: tuple[int, ...]) -> Array:
    centred = x - x.mean(axes, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axes, keepdims=True) + 1e-5)


def convolved(d: Array, w: Array, pad: int = 0, stride: int = 1, groups: int = 1) -> Array:
    d = np.pad(d, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = np.lib.stride_tricks.sliding_window_view(d, w.shape[2:], (2, 3))
    windows = windows[:, :, ::stride, ::stride]
    share, own = w.shape[0] // groups, w.shape[1]
    parts = [
        np.einsum("nchwyx,ocyx->nohw", windows[:, g * own : (g + 1) * own], w[g * share :][:share])
        for g in range(groups)
    ]
    return np.concatenate(parts, 1)


def transposed(d: Array, w: Array, stride: int) -> Array:
    n, _, height, width = d.shape
    _, o, ky, kx = w.shape
    made = np.zeros((n, o, (height - 1) * stride + ky, (width - 1) * stride + kx), d.dtype)
    for y in range(height):
        for x in range(width):
            part = np.einsum("nc,coyx->noyx", d[:, :, y, x], w)
            made[:, :, y * stride : y * stride + ky, x * stride : x * stride + kx] += part
    return made


def attention(q: Array) -> Array:
    scores = np.einsum("bsnh,btnh->bnst", q, q) / np.float32(np.sqrt(8))
    return np.einsum("bnst,btnh->bsnh", softmax(scores, -1), q)


# An expression in a script, and the same with numpy. Several results are a tuple.
CALLS: dict[str, Callable[..., Any]] = {
    "x * x + y / 2": lambda x, y, **_: x * x + y / 2,
    "1 - x": lambda x, **_: 1 - x,
    "-x": lambda x, **_: -x,
    "x ** 2": lambda x, **_: x**2,
    "i // 4": lambda i, **_: i // 4,
    "x > 0.5": lambda x, **_: x > 0.5,
    "x != y": lambda x, y, **_: x != y,
    "x @ m": lambda x, m, **_: x @ m,
    "R.add(x, R.const(2.0))": lambda x, **_: x + 2,
    "R.maximum(x, 0.5)": lambda x, **_: np.maximum(x, 0.5),
    "R.floor_divide(x, y)": lambda x, y, **_: np.floor(x / y),
    "R.power(i, 2)": lambda i, **_: i * i,
    "R.not_equal(i, 3)": lambda i, **_: i != 3,
    "R.left_shift(i, 2)": lambda i, **_: i << 2,
    "R.right_shift(i, 1)": lambda i, **_: i >> 1,
    "R.rsqrt(x)": lambda x, **_: 1 / np.sqrt(x),
    "R.square(x)": lambda x, **_: x * x,
    "R.isfinite(x)": lambda x, **_: np.isfinite(x),
    "R.isinf(x)": lambda x, **_: np.isinf(x),
    "R.clip(x, 0.2, 0.6)": lambda x, **_: np.clip(x, 0.2, 0.6),
    "R.ewise_fma(x, y, x)": lambda x, y, **_: x * y + x,
    "R.where(b, x, y)": lambda b, x, y, **_: np.where(b, x, y),
    "R.where(b, x, 0)": lambda b, x, **_: np.where(b, x, 0),
    'R.astype(x, "int32")': lambda x, **_: x.astype("int32"),
    "R.full((2, 3), 4.0)": lambda **_: np.full((2, 3), 4, "float32"),
    'R.full(R.shape([2]), R.const(4, "int32"))': lambda **_: np.full(2, 4, "int32"),
    "R.full_like(i, 7)": lambda i, **_: np.full_like(i, 7),
    'R.zeros((2, 2), "float32")': lambda **_: np.zeros((2, 2), "float32"),
    "R.ones_like(x)": lambda x, **_: np.ones_like(x),
    "R.arange(1, 9, 2)": lambda **_: np.arange(1, 9, 2),
    "R.tril(x)": lambda x, **_: np.tril(x),
    "R.triu(x, 1)": lambda x, **_: np.triu(x, 1),
    "R.sum(x)": lambda x, **_: x.sum(),
    "R.sum(x, axis=1, keepdims=True)": lambda x, **_: x.sum(1, keepdims=True),
    "R.max(x, [0, -1])": lambda x, **_: x.max((0, 2)),
    "R.mean(x, -1)": lambda x, **_: x.mean(-1),
    "R.variance(x, axis=[1])": lambda x, **_: x.var(1),
    "R.std(x)": lambda x, **_: x.std(),
    "R.argmax(x, axis=1)": lambda x, **_: x.argmax(1),
    "R.argmin(x)": lambda x, **_: np.int64(x.argmin()),
    "R.cumsum(x, 1)": lambda x, **_: x.cumsum(1),
    "R.cumprod(x)": lambda x, **_: x.cumprod(),
    "R.cumsum(x, 0, exclusive=True)": lambda x, **_: x.cumsum(0) - x,
    "R.sort(x)": lambda x, **_: np.sort(x),
    "R.argsort(x, 1, True)": lambda x, **_: np.argsort(-x, 1).astype("int32"),
    "R.topk(x, 2)": lambda x, **_: (
        -np.sort(-x)[..., :2],
        np.argsort(-x)[..., :2].astype("int32"),
    ),
    'R.topk(x, 1, axis=0, ret_type="values", largest=False)': lambda x, **_: x.min(
        0, keepdims=True
    ),
    "R.reshape(x, (4, -1))": lambda x, **_: x.reshape(4, -1),
    "R.flatten(x)": lambda x, **_: x.reshape(-1),
    "R.permute_dims(x)": lambda x, **_: x.transpose(),
    "R.permute_dims(x, axes=[0, -1, 1])": lambda x, **_: x.transpose(0, 2, 1),
    "R.expand_dims(x, [0, -1])": lambda x, **_: x[None, ..., None],
    "R.squeeze(R.expand_dims(x, 1))": lambda x, **_: x,
    "R.broadcast_to(v, (2, 3))": lambda v, **_: np.broadcast_to(v, (2, 3)),
    "R.concat((x, y), axis=1)": lambda x, y, **_: np.concatenate((x, y), 1),
    "R.split(x, 3, axis=1)": lambda x, **_: tuple(np.split(x, 3, 1)),
    "R.split(x, [1, 3], axis=-1)": lambda x, **_: tuple(np.split(x, [1, 3], -1)),
    "R.split(x, 2, 1)[1]": lambda x, **_: x[:, 2:],
    "R.strided_slice(x, [1, 2], [0, 1], [2, 100])": lambda x, **_: x[:, 0:2, 1:],
    "R.strided_slice(x, axes=[2], begin=[3], end=[-5], strides=[-2])": lambda x, **_: x[
        :, :, 3::-2
    ],
    "R.flip(x, axis=1)": lambda x, **_: x[:, ::-1],
    "R.take(x, R.const([2, 0]), axis=1)": lambda x, **_: x[:, [2, 0]],
    "R.take(v, 1)": lambda v, **_: v[1],
    "R.repeat(x, 2, 1)": lambda x, **_: np.repeat(x, 2, 1),
    "R.repeat(v, 3)": lambda v, **_: np.repeat(v, 3),
    "R.tile(x, (2, 1, 1, 3))": lambda x, **_: np.tile(x, (2, 1, 1, 3)),
    "R.matmul(v, v)": lambda v, **_: v @ v,
    "R.matmul(v, x)": lambda v, x, **_: v @ x,
    "R.matmul(m, v)": lambda m, v, **_: m @ v,
    "R.linear(x, R.permute_dims(m), v)": lambda x, m, v, **_: x @ m + v,
    'R.einsum((x, m), subscripts="abc,cd->ad")': lambda x, m, **_: np.einsum("abc,cd->ad", x, m),
    "R.collapse_sum_to(x, (1, 4))": lambda x, **_: x.sum((0, 1))[None],
    "R.softmax(x)": lambda x, **_: softmax(x, -1),
    "R.nn.softmax(x, axis=1)": lambda x, **_: softmax(x, 1),
    "R.nn.log_softmax(x)": lambda x, **_: np.log(softmax(x, -1)),
    "R.nn.relu(x - 0.5)": lambda x, **_: np.maximum(x - 0.5, 0),
    "R.nn.leakyrelu(x - 0.5, 0.1)": lambda x, **_: np.where(x < 0.5, (x - 0.5) * 0.1, x - 0.5),
    "R.nn.silu(x)": lambda x, **_: x / (1 + np.exp(-x)),
    "R.nn.layer_norm(m, v, v, axes=[-1])": lambda m, v, **_: normalized(m, (1,)) * v + v,
    "R.nn.rms_norm(m, v)": lambda m, v, **_: m / np.sqrt((m * m).mean(1, keepdims=True) + 1e-5) * v,
    "R.nn.group_norm(d, c, c, 2, 1, [2, 3])": lambda d, c, **_: (
        normalized(d.reshape(1, 2, -1), (2,)).reshape(d.shape) * c[:, None, None] + c[:, None, None]
    ),
    "R.nn.batch_norm(d, c, c, c, c, axis=1)": lambda d, c, **_: (
        (d - c[:, None, None]) / np.sqrt(c + 1e-5)[:, None, None] * c[:, None, None]
        + c[:, None, None],
        c,
        c,
    ),
    "R.nn.conv2d(d, w, padding=1)": lambda d, w, **_: convolved(d, w, 1),
    "R.nn.conv2d(d, g, strides=2, groups=4)": lambda d, g, **_: convolved(d, g, 0, 2, 4),
    'R.nn.conv2d(R.permute_dims(d, [0, 2, 3, 1]), w, data_layout="NHWC")': lambda d, w, **_: (
        convolved(d, w).transpose(0, 2, 3, 1)
    ),
    "R.nn.conv2d_transpose(d, t, strides=(2, 2))": lambda d, t, **_: transposed(d, t, 2),
    "R.nn.conv1d(x, R.reshape(m, (2, 3, 2)))": lambda x, m, **_: np.einsum(
        "nclk,ock->nol",
        np.lib.stride_tricks.sliding_window_view(x, 2, 2),
        m.reshape(2, 3, 2),
    ),
    "R.nn.max_pool2d(d, (2, 2), (2, 2))": lambda d, **_: np.maximum(
        np.maximum(d[:, :, ::2, :4:2], d[:, :, 1::2, :4:2]),
        np.maximum(d[:, :, ::2, 1:4:2], d[:, :, 1::2, 1:4:2]),
    ),
    "R.nn.avg_pool2d(d, pool_size=[2, 1], strides=[2, 1])": lambda d, **_: (
        (d[:, :, ::2] + d[:, :, 1::2]) / 2
    ),
    "R.nn.adaptive_avg_pool2d(d, (1, 1))": lambda d, **_: d.mean((2, 3), keepdims=True),
    "R.nn.pad(v, (1, 2))": lambda v, **_: np.pad(v, (1, 2)),
    "R.nn.attention(q, q, q)": lambda q, **_: attention(q),
    "R.nn.dropout(x)": lambda x, **_: (x, np.ones_like(x)),
    'R.image.resize2d(d, (12, 10), method="nearest_neighbor",'
    ' coordinate_transformation_mode="asymmetric", rounding_method="floor")': lambda d, **_: (
        np.repeat(np.repeat(d, 2, 2), 2, 3)
    ),
    "R.image.resize2d(d, (3, 5))": lambda d, **_: (d[:, :, ::2] + d[:, :, 1::2]) / 2,
    "R.memory.view(x, R.shape([24]))": lambda x, **_: x.reshape(24),
    "R.shape_to_tensor(R.shape_of(x))": lambda x, **_: np.array(x.shape),
}


@pytest.mark.parametrize("expression", CALLS)
def test_words_compute_what_numpy_does(expression: str) -> None:
    made, given = function(expression), values()
    wanted = CALLS[expression](**given)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    found = evaluate(made, given)
    assert len(found) == len(wanted)
    for array, expected in zip(found.values(), wanted, strict=True):
        assert array.dtype == np.asarray(expected).dtype and array.shape == np.shape(expected)
        np.testing.assert_allclose(array, expected, rtol=2e-5, atol=1e-5)
    again = from_script(made.script(), constants=named_constants(made))
    assert again.script() == made.script()


def test_words_of_a_builder() -> None:
    op = relax.op
    x, w = Var("x", tensor_type((1, 4, 6, 5))), Var("w", tensor_type((8, 4, 3, 3)))
    b = BlockBuilder()
    with b.function("main", [x, w]):
        y = b.emit(op.nn.relu(op.nn.conv2d(x, w, padding=1)), name="y")
        both = b.emit(op.split(op.multiply(y, 2.0), 2, axis=1))
        z = b.emit(op.concat([both[1], both[0]], axis=1))
        b.emit_func_output(b.emit(op.sum(z, axis=[2, 3])))
    main = b.get()["main"]
    given = {name: values()[name] for name in ("d", "w")}
    (found,) = evaluate(main, [given["d"], given["w"]]).values()
    wanted = np.maximum(convolved(given["d"], given["w"], 1), 0).sum((2, 3)) * 2
    np.testing.assert_allclose(found, np.roll(wanted, 4, 1), rtol=1e-4)
    with pytest.raises(AttributeError, match=r"no R\.nn\.conv2\n  try: R\.nn\.conv2d"):
        _ = op.nn.conv2
    with pytest.raises(AttributeError, match=r"no R\.print: a kernel prints nothing"):
        _ = op.print


def test_every_result_has_a_name_of_its_own() -> None:
    text = """
@R.function
def main(x: R.Tensor((4,), "float32")):
    B = R.negative(x)
    C = R.relu(x)
    return (B, C, B, x, x, R.const([1.0], "float32"))
"""
    made = from_script(text)
    assert isinstance(made, Function)
    assert made.output_names == ("B", "C", "B_1", "x", "x_1", "output5")
    x = np.arange(-2, 2).astype("float32")
    wanted = (-x, np.maximum(x, 0), -x, x, x, np.ones(1, "float32"))
    found = evaluate(made, [x])
    with mlc.VirtualMachine(mlc.compile(made, "host"), "local://") as vm:
        run = vm["main"](x)
    for results in (tuple(found.values()), run):
        assert len(results) == len(wanted)
        for array, expected in zip(results, wanted, strict=True):
            np.testing.assert_array_equal(array, expected)

    with pytest.raises(ValueError, match="two outputs are called 'a'\n  in:  return"):
        verify(replace(made, output_names=("a", "b", "a", "c", "d", "e")))


SHAPELESS = """
@I.ir_module
class Module:
    @R.function
    def double(a: R.Tensor) -> R.Tensor:
        return R.add(a, a)

    @R.function
    def main(x: R.Tensor, pair: R.Tuple(R.Tensor, R.Tensor((3,), "float32"))) -> R.Tensor:
        n = T.int64()
        y = R.match_cast(Module.double(x), R.Tensor((n, 3), "float32"))
        z = R.reshape(y, (n * 3,))
        return R.sum(z) + R.sum(pair[0]) * R.sum(pair[1])
"""


def test_functions_without_shapes() -> None:
    module = from_script(SHAPELESS)
    assert from_script(module.script()).script() == module.script()
    main = module["main"]  # type: ignore[index]
    assert isinstance(main, Shapeless)
    x, a, b = (np.ones(shape, "float32") for shape in ((5, 3), (2,), (3,)))
    (found,) = evaluate(main, [x, a, b]).values()
    assert found == 36
    with pytest.raises(GraphError, match="does not say the shape of 'pair_0'"):
        main.of({"x": tensor_type((2, 3))})
    with pytest.raises(mlc.ScriptError, match=r"is float32\[2\], not float32\[n, 3\]"):
        evaluate(main, [a, a, b])
    with pytest.raises(mlc.ScriptError, match=r"there is no R\.rellu"):
        from_script("@R.function\ndef f(x: R.Tensor):\n    return R.rellu(x)\n")


BRANCHES = """
@R.function
def main(c: R.Prim("bool"), x: R.Tensor((4,), "float32"), _io: R.Object):
    @R.function
    def inner(a: R.Tensor((4,), "float32")):
        return a * a

    if c:
        w = inner(x)
        y = w + 1
    else:
        y = x
    return (y, (_io,))
"""


def test_branches_and_functions_within() -> None:
    made = from_script(BRANCHES)
    x = np.arange(4).astype("float32")
    for condition, wanted in ((True, x * x + 1), (False, x)):
        (found,) = evaluate(made, [np.array(condition), x]).values()  # type: ignore[arg-type]
        np.testing.assert_array_equal(found, wanted)
    assert from_script(made.script()).script() == made.script()


def test_packed_functions_may_return() -> None:
    mlc.register_func("test.returns", lambda x: x + 1, override=True)
    mlc.register_func("test.wrong", lambda x: x[:2], override=True)
    text = """
@R.function
def main(x: R.Tensor((4,), "float32")):
    return R.call_pure_packed("test.{}", x, sinfo_args=R.Tensor((4,), "float32"))
"""
    x = np.arange(4).astype("float32")
    (found,) = evaluate(from_script(text.format("returns")), [x]).values()  # type: ignore[arg-type]
    np.testing.assert_array_equal(found, x + 1)
    with pytest.raises(mlc.MlcError, match=r"returned float32\[2\], where the graph says float32"):
        evaluate(from_script(text.format("wrong")), [x])  # type: ignore[arg-type]


def test_calls_of_functions_become_part_of_the_caller() -> None:
    text = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((2, "k"), "float32")):
        y = Module.rows(x)
        return y

    @R.function(private=True)
    def rows(a: R.Tensor(("n", "m"), "float32")) -> R.Tensor(("n * m",), "float32"):
        n, m = T.int64(), T.int64()
        return R.reshape(a, (n * m,))
"""
    module = from_script(text)
    x = np.arange(6).astype("float32").reshape(2, 3)
    (found,) = evaluate(module["main"], [x], module=module).values()  # type: ignore[index, arg-type]
    np.testing.assert_array_equal(found, x.reshape(-1))
    assert from_script(module.script()).script() == module.script()
