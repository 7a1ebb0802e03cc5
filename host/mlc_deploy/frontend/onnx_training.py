"""Converters of one step of training (ai.onnx.preview.training), and of random numbers.

Random numbers need a seed. They are generated at compile time by numpy's generator, like those of
onnx's reference, so all runs have the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..graph.nodes import Constant, Value
from .layers.products import scaled
from .layers.shapes import reshape
from .node import limited
from .onnx_node import Converter, OnnxNode

Update = Callable[[OnnxNode, Value, Value, Sequence[Value]], list[Value]]


def _each(update: Update, kept: int) -> Converter:
    """Applies update to each group of tensors. Inputs: the rate, the number of updates, then all
    weights, all gradients, and `kept` further lists of tensors that updates pass on."""

    def convert(n: OnnxNode) -> Any:
        rate, count, *tensors = n.every()
        groups = len(tensors) // (2 + kept)
        rate, count = (reshape(n, v, ()) for v in (rate, count))
        every = [update(n, rate, count, tensors[k::groups]) for k in range(groups)]
        return [value for group in zip(*every, strict=True) for value in group]

    return convert


def _gradient(n: OnnxNode, x: Value, gradient: Value) -> Value:
    return n.emit("add", scaled(n, x, n.attr("norm_coefficient", 0.0)), gradient)


def _mixed(n: OnnxNode, old: Value, now: Value, share: float) -> Value:
    return n.emit("add", scaled(n, old, share), scaled(n, now, 1 - share))


def _adagrad(n: OnnxNode, rate: Value, count: Value, tensors: Sequence[Value]) -> list[Value]:
    x, gradient, squares = tensors
    dtype = x.type.dtype
    one = n.constant(1, dtype)
    decay = n.emit("add", one, scaled(n, n.cast(count, dtype), n.attr("decay_factor", 0.0)))
    gradient = _gradient(n, x, gradient)
    squares = n.emit("add", squares, n.emit("multiply", gradient, gradient))
    size = n.emit("add", n.emit("sqrt", squares), n.constant(n.attr("epsilon", 1e-6), dtype))
    step = n.emit("divide", n.emit("multiply", n.emit("divide", rate, decay), gradient), size)
    return [n.emit("subtract", x, step), squares]


def _adam(n: OnnxNode, rate: Value, count: Value, tensors: Sequence[Value]) -> list[Value]:
    x, gradient, mean, squares = tensors
    dtype = x.type.dtype
    alpha, beta = n.attr("alpha", 0.9), n.attr("beta", 0.999)
    zero, one = n.constant(0, dtype), n.constant(1, dtype)
    gradient = _gradient(n, x, gradient)
    mean = _mixed(n, mean, gradient, alpha)
    squares = _mixed(n, squares, n.emit("multiply", gradient, gradient), beta)
    size = n.emit("add", n.emit("sqrt", squares), n.constant(n.attr("epsilon", 1e-6), dtype))
    turns = n.cast(count, dtype)
    lacks = [
        n.emit("subtract", one, n.emit("power", n.constant(share, dtype), turns))
        for share in (alpha, beta)
    ]
    unbiased = n.emit("divide", n.emit("multiply", rate, n.emit("sqrt", lacks[1])), lacks[0])
    rate = n.emit("where", n.emit("greater", turns, zero), unbiased, rate)
    x = n.emit("subtract", x, n.emit("multiply", rate, n.emit("divide", mean, size)))
    return [scaled(n, x, 1 - n.attr("norm_coefficient_post", 0.0)), mean, squares]


def _momentum(n: OnnxNode, rate: Value, count: Value, tensors: Sequence[Value]) -> list[Value]:
    x, gradient, speed = tensors
    dtype = x.type.dtype
    later = n.emit("greater", count, n.constant(0, count.type.dtype))
    share = n.emit("where", later, n.constant(n.attr("beta"), dtype), n.constant(1, dtype))
    gradient = _gradient(n, x, gradient)
    speed = n.emit("add", scaled(n, speed, n.attr("alpha")), n.emit("multiply", share, gradient))
    step = speed
    if n.attr("mode") == "nesterov":
        step = n.emit("add", gradient, scaled(n, speed, n.attr("alpha")))
    return [n.emit("subtract", x, n.emit("multiply", rate, step)), speed]


# --------------------------------------------------------------------------------- random numbers


def _generator(n: OnnxNode) -> np.random.RandomState:
    """Raises ImporterError if the node has no seed."""
    seed = n.attr("seed", None)
    if seed is None:
        what = "without a seed, every run would have other random numbers"
        raise n.refuse(what, "a seed, or the random numbers as an input")
    return np.random.RandomState(int(seed))


def _random(n: OnnxNode) -> Any:
    like = n.op.endswith("Like")
    shape: Sequence[int] = n.shape() if like else n.attr("shape")
    dtype = n.dtype_of("dtype", n.dtype() if like else "float32")
    limited(math.prod(shape), "a table of random numbers")
    state = _generator(n)
    if n.op.startswith("RandomNormal"):
        drawn, step, base = state.randn(*shape), n.attr("scale", 1.0), n.attr("mean", 0.0)
    else:
        low, high = n.attr("low", 0.0), n.attr("high", 1.0)
        drawn, step, base = state.rand(*shape), high - low, low
    return n.constant(np.asarray(drawn, dtype) * step + base, dtype)


def _bernoulli(n: OnnxNode) -> Any:
    """1 with probability x. onnx's own function definition wrongly gives 0 with that
    probability."""
    limited(math.prod(n.shape()), "a table of random numbers")
    drawn = n.constant(_generator(n).rand(*n.shape()), n.dtype())
    return n.cast(n.emit("less", drawn, n.input(0)), n.dtype_of("dtype", n.dtype()))


def _dropout(n: OnnxNode) -> Any:
    """Drops nothing unless the input `training_mode` is true."""
    x, training = n.input(0), n.optional(2) if n.opset >= 12 else None
    every = n.constant(np.ones(n.shape(), bool), "bool")
    if training is None or (isinstance(training, Constant) and not training.value.all()):
        return [x, every] if len(n.outputs) > 1 else x
    ratio = n.optional(1) or n.constant(0.5, "float32")
    if isinstance(ratio, Constant) and not ratio.value.any():
        return [x, every] if len(n.outputs) > 1 else x
    limited(math.prod(n.shape()), "a table of random numbers")
    drawn: NDArray[Any] = _generator(n).uniform(0, 1, n.shape())
    ratio, training = n.cast(reshape(n, ratio, ()), "float32"), reshape(n, training, ())
    kept = n.emit("greater_equal", n.constant(drawn, "float32"), ratio)
    kept = n.emit("where", training, kept, every)
    one = n.constant(1, "float32")
    rest = n.emit("where", training, n.emit("subtract", one, ratio), one)
    y = n.emit("divide", x, n.cast(rest, x.type.dtype))
    y = n.emit("where", kept, y, n.constant(0, x.type.dtype))
    return [y, kept] if len(n.outputs) > 1 else y


TRAINING: dict[str, Converter] = {
    "Bernoulli": _bernoulli, "Dropout": _dropout, "RandomNormal": _random,
    "RandomNormalLike": _random, "RandomUniform": _random, "RandomUniformLike": _random,
    "ai.onnx.preview.training::Adagrad": _each(_adagrad, 1),
    "ai.onnx.preview.training::Adam": _each(_adam, 2),
    "ai.onnx.preview.training::Momentum": _each(_momentum, 1),
}  # fmt: skip
