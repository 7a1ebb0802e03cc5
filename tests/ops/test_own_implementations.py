"""Implementations, keys and tags of users."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

import mlc_deploy as mlc
from mlc_deploy.driver.kernels import _is_own
from mlc_deploy.graph import BlockBuilder, Function
from mlc_deploy.graph.fuse import fused
from mlc_deploy.graph.layouts import choose_plans
from mlc_deploy.graph.lower import kernel_source
from mlc_deploy.graph.nodes import Call
from mlc_deploy.ir import PrimFunc
from mlc_deploy.ops import Attrs, Plan, TensorType, strategy
from mlc_deploy.ops.cpu import default_schedule
from mlc_deploy.ops.registry import compute
from mlc_deploy.ops.strategy import register_implementation
from mlc_deploy.te import Tensor
from mlc_targets import Target, TargetError, register_tag, resolve
from tests import own_tables


@dataclass(frozen=True, kw_only=True)
class Plain(Plan):
    name = "matmul_plain"

    def compute(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        return compute(self.op, inputs, self.attrs)

    def schedule(self, func: PrimFunc) -> PrimFunc:
        return default_schedule(func, self.target)


def plan_plain(types: Sequence[TensorType], attrs: Attrs, target: Target) -> Plain | None:
    if types[0].dtype != "float32":
        return None
    return Plain(op="matmul", types=tuple(types), stated=tuple(attrs.items()), target=target)


@pytest.fixture(autouse=True)
def tables() -> Iterator[None]:
    with own_tables.restored():
        yield


def product(dtype: str = "float32") -> Function:
    b = BlockBuilder("main")
    return b.finish([b.emit("matmul", b.param("a", (4, 8), dtype), b.param("b", (8, 16), dtype))])


def taken(function: Function, target: str) -> str:
    (binding,) = choose_plans(Target(target))(function).bindings
    assert isinstance(binding.call, Call) and binding.call.plan is not None
    return binding.call.plan.name


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("aarch64 -keys=lab", "matmul_plain"),
        ("aarch64 -model=lab", "matmul_plain"),
        ("aarch64", "matmul_tile"),
        ("x86_64 -keys=lab", "matmul_plain"),
    ],
)
def test_a_key_says_who_takes_it(target: str, name: str) -> None:
    register_implementation("matmul", "lab", "matmul_plain", plan_plain, level=0)
    assert taken(product(), target) == name
    assert taken(product("float64"), "aarch64 -keys=lab") == "matmul_tile"


def test_what_a_user_plans_is_compiled_here_and_not_kept() -> None:
    (binding,) = choose_plans(Target("aarch64"))(product()).bindings
    source = kernel_source(fused([binding]))
    assert _is_own(source)
    register_implementation("matmul", "lab", "matmul_plain", plan_plain)
    assert not _is_own(source)


def test_the_general_key_leaves_out_instructions_of_arm() -> None:
    types = [TensorType((1, 16, 8, 8), "int8"), TensorType((16, 16, 3, 3), "int8")]
    attrs = {"strides": (1, 1), "dilations": (1, 1), "pads": (1,) * 4, "groups": 1}
    with_keys = {
        keys: strategy.best_plan("conv2d", types, attrs, Target(f"aarch64 -keys={keys}"))
        for keys in ("cpu", "arm_cpu,cpu")
    }
    assert with_keys["cpu"] is None
    assert with_keys["arm_cpu,cpu"] is not None


@pytest.mark.parametrize(
    ("op", "name", "message"),
    [
        ("matmull", "mine", "\"no operator 'matmull'\\n  try: matmul\""),
        (
            "relu",
            "mine",
            "register_implementation: relu is computed in the kernels of its neighbours\n"
            "  try: an operator of the patterns anchor and reduction",
        ),
        (
            "matmul",
            "matmul_tile",
            "register_implementation: 'cpu' has 'matmul_tile' of matmul already",
        ),
    ],
)
def test_what_cannot_be_registered(op: str, name: str, message: str) -> None:
    with pytest.raises((ValueError, KeyError)) as caught:
        register_implementation(op, "cpu", name, plan_plain)
    assert str(caught.value) == message


def test_a_tag_means_a_target() -> None:
    register_tag("lab/attic", "raspberry-pi/4b-aarch64 -keys=lab")
    target = mlc.Target("lab/attic")
    assert target.keys == ("lab", "arm_cpu", "cpu") and target.mcpu == "cortex-a72"
    assert target.short_name == "lab/attic" and Target(str(target)) == target
    assert Target("lab/attic -keys=cpu").keys == ("cpu",)


@pytest.mark.parametrize(
    ("name", "target", "message"),
    [
        ("aarch64", "armv7a", "'aarch64' is the name of a target already\n  try: another name"),
        ("a b", "armv7a", "'a b' is not a name for a target\n  try: letters, digits, . _ - and /"),
        ("mine", "aarch65", "unknown target or board 'aarch65'"),
    ],
)
def test_what_is_no_tag(name: str, target: str, message: str) -> None:
    with pytest.raises(TargetError) as caught:
        register_tag(name, target)
    assert str(caught.value).startswith(message)
    assert "mine" not in resolve._TAGS
