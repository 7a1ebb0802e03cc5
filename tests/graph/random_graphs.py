"""Random graph functions and modules: any operators, several outputs, constants of all kinds, fused
calls, calls of PrimFuncs and of registered functions, symbolic dimensions."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from mlc_deploy import te
from mlc_deploy.graph import (
    BlockBuilder,
    CallPacked,
    Constant,
    Function,
    Value,
    Var,
    op,
    register_func,
    tensor_type,
)
from mlc_deploy.graph.fuse import fuse_operators
from mlc_deploy.ir import IRModule

UNARY = ("relu", "tanh", "negative", "abs", "sigmoid", "copy")
BINARY = ("add", "multiply", "maximum", "subtract")
NAMES = ("x", "conv1/out:0", "class", "R", "add", "3", "a b", "float", "λ")
LAYERS = ("", "", "conv1", "block/2 # a", "  odd   spaces ")


def double(x: Any, out: Any) -> None:
    np.add(x, x, out=out)


def note(x: Any) -> None:
    """A call for its effect."""


register_func("tests.double", double, override=True)
register_func("tests.note", note, override=True)


def te_halve(x: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda *i: x[i] * 0.5, name="halved")  # type: ignore[no-any-return]


def random_module(rng: random.Random, symbolic: bool = True) -> IRModule:
    """A module of `main` and the PrimFuncs it calls. All values have one shape or are scalars,
    so that everything fits everything."""
    shape: tuple[int | str, ...] = rng.choice([(2, 3), (6,), (1, 2, 5), (2, "m"), ("n", 4, "m")])
    if not symbolic:
        shape = tuple(2 if isinstance(d, str) else d for d in shape)
    known = [d for d in shape if isinstance(d, int)]
    bb = BlockBuilder()
    names = rng.sample(NAMES, rng.randint(1, 3))
    params = [Var(name, tensor_type(shape)) for name in names]
    values: list[Value] = list(params)

    def constant() -> Constant:
        array = np.asarray(rng.choice([0.1, -0.0, 1e30, float("inf"), 3.0]), np.float32)
        kinds = [array, array.reshape((1,) * len(shape))]
        if len(known) == len(shape):
            kinds.append(np.full(known, array))
        return Constant(rng.choice(kinds), rng.choice(["", "w", "w", "fc/w"]))

    def pick() -> Value:
        return rng.choice(values) if rng.random() < 0.8 else constant()

    with bb.function("main", params):
        for _ in range(rng.randint(0, 8)):
            source, name = rng.choice(LAYERS), rng.choice(["", "", *NAMES])
            x = rng.choice(values)
            match rng.randint(0, 7):
                case 0 | 1:
                    made = bb.emit(rng.choice(UNARY), x, source=source, name=name)
                case 2 | 3:
                    made = bb.emit(rng.choice(BINARY), x, pick(), source=source, name=name)
                case 4:
                    made = bb.emit(op.clip(x, min=rng.choice([-1.5, float("-inf")]), max=2.0))
                case 5:
                    made = bb.call_dps_packed("tests.double", [x], x.type, source=source)
                case 6 if len(known) == len(shape):
                    made = bb.emit_te(te_halve, x, source=source)
                case _:
                    bb.emit(CallPacked("tests.note", (x,), (), pure=False))
                    continue
            values.append(made)
        outputs = [rng.choice(values) for _ in range(rng.randint(1, 3))]
        wanted = [rng.choice([v.name, "out"]) for v in outputs]
        unique = len(set(wanted)) == len(wanted)
        bb.emit_func_output(outputs, names=wanted if unique else _numbered(len(wanted)))
    module = bb.get()
    return _fused(module) if rng.random() < 0.5 else module


def _numbered(count: int) -> list[str]:
    return [f"y{n}" for n in range(count)]


def _fused(module: IRModule) -> IRModule:
    main: Function = module["main"]
    return IRModule({**module.functions, "main": fuse_operators(main)})


def draw(function: Function, extent: int = 3, seed: int = 0) -> list[np.ndarray]:
    """Inputs of a function; symbolic dimensions have `extent`."""
    rng = np.random.default_rng(seed)
    shapes = [[d if isinstance(d, int) else extent for d in p.type.shape] for p in function.params]
    return [rng.normal(size=s).astype(np.float32) for s in shapes]
