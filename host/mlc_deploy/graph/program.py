"""A model as a program for the board: kernels, a table of calls, and a blob of weights."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlc_targets import Target

from ..ir import PrimFunc
from .lower import Group, Kernels, LowerCall, groups
from .nodes import Call, Constant, Function, TensorType, Value, Var
from .plan import Place, Space, align, own_outputs, plan_memory, roots

SPACES: Mapping[Space, int] = {"arena": 0, "weights": 1, "input": 2, "output": 3}  # mlc_space


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One turn of the executor: `kernel` names a PrimFunc, `layer` what the model calls it."""

    kernel: str
    layer: str
    args: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class GraphProgram:
    """What the "model" map of mlc_abi.h says, and what it speaks of.

    `arena` is in bytes, `arena_lower_bound` what no plan could go below. Every offset is 64-byte
    aligned; `weights_hash` is the BLAKE2b-256 of `weights` (both empty where there are none).
    `places` tells where each variable of `function`, the graph as lowered, lies.
    """

    function: Function
    kernels: Mapping[str, PrimFunc]
    calls: tuple[KernelCall, ...]
    inputs: tuple[tuple[str, TensorType], ...]
    outputs: tuple[tuple[str, TensorType], ...]
    arena: int
    arena_lower_bound: int
    weights: bytes
    weights_hash: bytes
    places: Mapping[Var, Place]

    def model_map(self) -> dict[str, Any]:
        """The map as the object's section holds it; kernels count in the order of `kernels`."""
        numbers = {name: n for n, name in enumerate(self.kernels)}
        return {
            "inputs": [_signature(name, t) for name, t in self.inputs],
            "outputs": [_signature(name, t) for name, t in self.outputs],
            "arena": self.arena,
            "weights": len(self.weights),
            "weights_hash": self.weights_hash,
            "calls": [
                [
                    numbers[call.kernel],
                    call.layer,
                    [[SPACES[p.space], p.index, p.offset, p.size] for p in call.args],
                ]
                for call in self.calls
            ],
        }


def _signature(name: str, t: TensorType) -> dict[str, Any]:
    return {"name": name, "dtype": t.dtype, "shape": list(t.shape)}


class _Weights:
    """The blob as it grows; equal constants share their place."""

    def __init__(self) -> None:
        self.size = 0
        self.parts: list[bytes] = []
        self._places: dict[bytes, Place] = {}

    def place(self, constant: Constant) -> Place:
        array = np.ascontiguousarray(constant.value)
        digest = hashlib.blake2b(array.data).digest()
        if digest not in self._places:
            data = array.tobytes()
            self._places[digest] = Place("weights", 0, self.size, len(data))
            self.parts.append(data.ljust(align(len(data)), b"\0"))
            self.size += len(self.parts[-1])
        return self._places[digest]


def lower_graph(
    function: Function, target: Target, lower_call: LowerCall | None = None
) -> GraphProgram:
    """The program of an optimized graph. `lower_call` makes each operator's kernel; it defaults to
    the target's strategies."""
    if lower_call is None:
        from ..ops.strategy import lower_call as by_strategy

        lower_call = by_strategy
    function = own_outputs(function)
    parts = groups(function)
    kernels = Kernels(target, lower_call)
    plan = plan_memory(function, [b for g in parts for b in g.bindings])
    weights = _Weights()
    root_of = roots(function)

    def place(value: Value) -> Place:
        root = root_of.get(value, value)
        return weights.place(root) if isinstance(root, Constant) else plan.places[root]

    calls = tuple(
        KernelCall(kernels.name_for(g), layer, tuple(map(place, (*g.inputs, *g.outputs))))
        for g, layer in zip(parts, _layers(parts), strict=True)
    )
    blob = b"".join(weights.parts)
    return GraphProgram(
        function=function,
        kernels=kernels.functions,
        calls=calls,
        inputs=tuple((p.name, p.type) for p in function.params),
        outputs=tuple(
            (n, v.type) for n, v in zip(function.output_names, function.outputs, strict=True)
        ),
        arena=plan.arena,
        arena_lower_bound=plan.lower_bound,
        weights=blob,
        weights_hash=hashlib.blake2b(blob, digest_size=32).digest() if blob else b"",
        places=plan.places,
    )


def _layers(parts: Sequence[Group]) -> list[str]:
    """A name for each group: the model's node's, with the operator where a node gave several."""
    first = [g.bindings[0] for g in parts]
    sources = Counter(b.source for b in first)
    names: list[str] = []
    for number, binding in enumerate(first):
        op = binding.call.op if isinstance(binding.call, Call) else binding.call.func
        name = binding.source or f"{op}_{number}"
        names.append(name if sources[binding.source] == 1 or not binding.source else f"{name}.{op}")
    again = Counter(names)
    return [n if again[n] == 1 else f"{n}_{number}" for number, n in enumerate(names)]
