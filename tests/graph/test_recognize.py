"""Operators that a model spells out, in the ways that exporters write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mlc_deploy.graph import BlockBuilder, Call
from mlc_deploy.graph.recognize import recognize_operators
from tests.graph.small_graphs import built, check, number, ops

Spelled = Callable[["Spell", Any], Any]


class Spell:
    """Arithmetic on values, one call each."""

    def __init__(self, builder: BlockBuilder) -> None:
        self.builder = builder

    def __getattr__(self, op: str) -> Any:
        def call(*args: Any, **attrs: Any) -> Any:
            values = [number(a) if isinstance(a, float) else a for a in args]
            return self.builder.emit(op, *values, **attrs)

        return call

    def mean(self, x: Any, axes: tuple[int, ...] = (-1,)) -> Any:
        return self.builder.emit("mean", x, axes=axes, keepdims=True)


def layer_norm_of_torch(s: Spell, x: Any) -> Any:
    centred = s.subtract(x, s.mean(x))
    variance = s.mean(s.power(centred, 2.0))
    return s.divide(centred, s.sqrt(s.add(variance, 1e-5)))


def layer_norm_of_tensorflow(s: Spell, x: Any) -> Any:
    """x * rsqrt - mean * rsqrt is another matter; this centres first."""
    centred = s.subtract(x, s.mean(x))
    again = s.subtract(x, s.mean(x))
    variance = s.mean(s.multiply(centred, again))
    return s.multiply(s.reciprocal(s.sqrt(s.add(1e-6, variance))), centred)


def layer_norm_by_moments(s: Spell, x: Any) -> Any:
    mean = s.mean(x)
    variance = s.subtract(s.mean(s.multiply(x, x)), s.multiply(mean, mean))
    return s.divide(s.subtract(x, mean), s.power(s.add(variance, 1e-5), 0.5))


def instance_norm(s: Spell, x: Any) -> Any:
    centred = s.subtract(x, s.mean(x, (0, 1)))
    variance = s.mean(s.multiply(centred, centred), (0, 1))
    return s.multiply(centred, s.power(s.add(variance, 1e-5), -0.5))


def rms_norm(s: Spell, x: Any) -> Any:
    return s.multiply(x, s.reciprocal(s.sqrt(s.add(s.mean(s.power(x, 2.0)), 1e-6))))


def softmax(s: Spell, x: Any) -> Any:
    power = s.exp(s.subtract(x, s.max(x, axes=(1,), keepdims=True)))
    return s.divide(power, s.sum(power, axes=(1,), keepdims=True))


def softmax_unshifted(s: Spell, x: Any) -> Any:
    power = s.exp(x)
    return s.multiply(power, s.reciprocal(s.sum(power, axes=(0,), keepdims=True)))


def log_softmax(s: Spell, x: Any) -> Any:
    return s.log(softmax(s, x))


def gelu_of_torch(s: Spell, x: Any) -> Any:
    return s.multiply(s.multiply(x, s.add(s.erf(s.divide(x, 2.0**0.5)), 1.0)), 0.5)


def gelu_halved_first(s: Spell, x: Any) -> Any:
    return s.multiply(s.multiply(0.5, x), s.add(1.0, s.erf(s.multiply(x, 0.70710677))))


def gelu_by_tanh(s: Spell, x: Any) -> Any:
    cube = s.multiply(s.multiply(x, x), x)
    inner = s.multiply(0.7978846, s.add(x, s.multiply(cube, 0.044715)))
    return s.multiply(s.multiply(x, 0.5), s.add(s.tanh(inner), 1.0))


def gelu_by_tanh_and_power(s: Spell, x: Any) -> Any:
    inner = s.multiply(s.add(x, s.multiply(0.044715, s.power(x, 3.0))), 0.7978846)
    return s.multiply(x, s.multiply(s.add(1.0, s.tanh(inner)), 0.5))


def gelu_by_tanh_factored(s: Spell, x: Any) -> Any:
    square = s.add(1.0, s.multiply(s.multiply(x, 0.044715), x))
    inner = s.multiply(s.multiply(x, 0.7978846), square)
    return s.multiply(s.multiply(0.5, x), s.add(1.0, s.tanh(inner)))


def silu(s: Spell, x: Any) -> Any:
    return s.multiply(s.sigmoid(x), x)


def silu_by_division(s: Spell, x: Any) -> Any:
    return s.divide(x, s.add(1.0, s.exp(s.negative(x))))


def sigmoid(s: Spell, x: Any) -> Any:
    return s.divide(number(1.0), s.add(s.exp(s.multiply(x, -1.0)), 1.0))


def hard_swish_of_torch(s: Spell, x: Any) -> Any:
    return s.divide(s.multiply(x, s.clip(s.add(x, 3.0), min=0.0, max=6.0)), 6.0)


def hard_swish_of_keras(s: Spell, x: Any) -> Any:
    return s.multiply(x, s.multiply(s.clip(s.add(x, 3.0), min=0.0, max=6.0), 1 / 6))


def hard_sigmoid(s: Spell, x: Any) -> Any:
    return s.clip(s.add(s.multiply(x, 1 / 6), 0.5), min=0.0, max=1.0)


def mish(s: Spell, x: Any) -> Any:
    return s.multiply(x, s.tanh(s.softplus(x)))


def softplus(s: Spell, x: Any) -> Any:
    return s.log(s.add(s.exp(x), 1.0))


SPELLED: dict[Spelled, str] = {
    layer_norm_of_torch: "layer_norm",
    layer_norm_of_tensorflow: "layer_norm",
    layer_norm_by_moments: "layer_norm",
    instance_norm: "layer_norm",
    rms_norm: "rms_norm",
    softmax: "softmax",
    softmax_unshifted: "softmax",
    log_softmax: "log_softmax",
    gelu_of_torch: "gelu",
    gelu_halved_first: "gelu",
    gelu_by_tanh: "gelu",
    gelu_by_tanh_factored: "gelu",
    silu: "silu",
    silu_by_division: "silu",
    sigmoid: "sigmoid",
    hard_swish_of_torch: "hard_swish",
    hard_swish_of_keras: "hard_swish",
    hard_sigmoid: "hard_sigmoid",
    mish: "mish",
    softplus: "softplus",
}


@pytest.mark.parametrize("spelled", SPELLED, ids=lambda f: f.__name__)
def test_spelled_out(spelled: Spelled) -> None:
    from mlc_deploy.graph.passes import eliminate_common_subexpressions

    function = built(lambda b, x: spelled(Spell(b), x), (3, 4, 7))
    result = check(function, eliminate_common_subexpressions, recognize_operators)
    assert ops(result) == SPELLED[spelled]


def test_power_is_a_product() -> None:
    function = built(lambda b, x: gelu_by_tanh_and_power(Spell(b), b.emit("abs", x)), (3, 4))
    assert ops(check(function, recognize_operators)) == "abs gelu"


def test_attributes() -> None:
    def build(b: BlockBuilder, x: Any) -> Any:
        return [layer_norm_of_torch(Spell(b), x), gelu_by_tanh(Spell(b), x)]

    norm, gelu = recognize_operators(built(build, (3, 8))).bindings
    assert isinstance(norm.call, Call) and isinstance(gelu.call, Call)
    assert norm.call.attrs["axes"] == (-1,)
    assert norm.call.attrs["epsilon"] == pytest.approx(1e-5)
    assert gelu.call.attrs == {"approximate": "tanh"}


def another_number(s: Spell, x: Any) -> Any:
    return s.multiply(s.multiply(x, s.add(s.erf(s.divide(x, 1.5)), 1.0)), 0.5)


def another_value(s: Spell, x: Any) -> Any:
    return s.multiply(s.sigmoid(s.abs(x)), x)


def unnormalized(s: Spell, x: Any) -> Any:
    return s.divide(s.exp(x), s.sum(x, axes=(0,), keepdims=True))


def over_two_axes(s: Spell, x: Any) -> Any:
    return s.divide(s.exp(x), s.sum(s.exp(x), axes=(0, 1), keepdims=True))


@pytest.mark.parametrize("spelled", [another_number, another_value, unnormalized, over_two_axes])
def test_what_only_looks_alike(spelled: Spelled) -> None:
    function = built(lambda b, x: spelled(Spell(b), x), (3, 7))
    assert recognize_operators(function) is function


def test_what_is_read_elsewhere_is_computed_once() -> None:
    """Then the single operator would compute it again."""

    def build(b: BlockBuilder, x: Any) -> Any:
        s = Spell(b)
        gate = s.sigmoid(x)
        return [s.multiply(x, gate), gate]

    function = built(build, (3, 7))
    assert recognize_operators(function) is function


def test_centred_by_other_axes() -> None:
    """That is no layer_norm; what comes after is an rms_norm."""

    def build(b: BlockBuilder, x: Any) -> Any:
        s = Spell(b)
        centred = s.subtract(x, s.mean(x, (0,)))
        variance = s.mean(s.multiply(centred, centred))
        return s.divide(centred, s.sqrt(s.add(variance, 1e-5)))

    assert ops(check(built(build, (3, 7)), recognize_operators)) == "mean subtract rms_norm"


def test_large_logits_do_not_overflow() -> None:
    from mlc_deploy.graph import evaluate

    function = recognize_operators(built(lambda b, x: softmax_unshifted(Spell(b), x), (3, 2)))
    (found,) = evaluate(function, [np.full((3, 2), 1e4, np.float32)]).values()
    np.testing.assert_allclose(found, 1 / 3, rtol=1e-6)
