"""A model as a program for the board: kernels, a table of calls, and a blob of weights."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mlc_targets.object_format import SPACES, ModelMap, ParamMap

from ..ir import IRModule
from ..ir.names import Names
from .external import ExternalCall, external_call
from .lower import KernelSource, as_kernels, kernel_source
from .nodes import (
    Binding,
    Call,
    CallFused,
    CallPacked,
    CallTIR,
    Constant,
    Function,
    TensorType,
    Value,
    Var,
)
from .plan import Place, align, own_outputs, plan_memory
from .views import Memory, is_view


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
    `places` tells where each variable of `function`, the graph as lowered, lies. `externals` are
    the calls of registered functions, in order, which the executor knows nothing of.
    """

    function: Function
    kernels: Mapping[str, KernelSource]
    calls: tuple[KernelCall, ...]
    inputs: tuple[tuple[str, TensorType], ...]
    outputs: tuple[tuple[str, TensorType], ...]
    arena: int
    arena_lower_bound: int
    weights: bytes
    weights_hash: bytes
    places: Mapping[Var, Place]
    externals: tuple[ExternalCall, ...] = ()

    def model_map(self) -> ModelMap:
        """The map as the object's section holds it; kernels count in the order of `kernels`."""
        numbers = {name: n for n, name in enumerate(self.kernels)}
        return {
            "inputs": [_signature(name, t) for name, t in self.inputs],
            "outputs": [_signature(name, t) for name, t in self.outputs],
            "arena": self.arena,
            "weights": len(self.weights),
            "weights_hash": self.weights_hash,
            "calls": [
                (
                    numbers[call.kernel],
                    call.layer,
                    [(SPACES.index(p.space), p.index, p.offset, p.size) for p in call.args],
                )
                for call in self.calls
            ],
        }


def _signature(name: str, t: TensorType) -> ParamMap:
    return {"name": name, "dtype": t.dtype, "shape": t.sizes}


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


def lower_graph(function: Function, module: IRModule | None = None) -> GraphProgram:
    """The program of an optimized graph; module holds the PrimFuncs that it calls."""
    function = own_outputs(function)
    function = replace(function, bindings=as_kernels(function))
    calls = [b for b in function.bindings if not is_view(b)]
    plan = plan_memory(function)
    memory = Memory(function)
    kernels = _Kernels(module)
    weights = _Weights()

    def place(value: Value) -> Place:
        if isinstance(value, Var) and value in plan.places:
            return plan.places[value]
        root, offset = memory.region(value)
        assert isinstance(root, Constant), f"{value} has no place"
        whole = weights.place(root)
        return replace(whole, offset=whole.offset + offset, size=value.type.bytes)

    table: list[KernelCall] = []
    externals: list[ExternalCall] = []
    for binding, layer in zip(calls, _layers(calls), strict=True):
        if isinstance(binding.call, CallPacked):
            externals.append(external_call(binding, layer, len(table), place))
            continue
        kernel = kernels.name_for(binding, plan.in_place.get(binding.outputs[0]))
        args = tuple(map(place, (*binding.call.args, *binding.outputs)))
        table.append(KernelCall(kernel, layer, args))
    blob = b"".join(weights.parts)
    return GraphProgram(
        function=function,
        kernels=kernels.sources,
        calls=tuple(table),
        inputs=tuple((p.name, p.type) for p in function.params),
        outputs=tuple(
            (n, v.type) for n, v in zip(function.output_names, function.outputs, strict=True)
        ),
        arena=plan.arena,
        arena_lower_bound=plan.lower_bound,
        weights=blob,
        weights_hash=hashlib.blake2b(blob, digest_size=32).digest() if blob else b"",
        places=plan.places,
        externals=tuple(externals),
    )


class _Kernels:
    """The kernels of a program by name; those that compute the same thing are one."""

    def __init__(self, module: IRModule | None) -> None:
        self.sources: dict[str, KernelSource] = {}
        self._module = module
        self._names = Names()
        self._by_digest: dict[bytes, str] = {}

    def name_for(self, binding: Binding, in_place: int | None) -> str:
        """The name of the kernel that computes the binding."""
        source = kernel_source(binding, self._module)
        if in_place is not None:
            source = replace(source, in_place=(in_place,))
        digest = source.digest
        if digest not in self._by_digest:
            name = self._names.fresh(source.name)
            self.sources[name] = replace(source, name=name)
            self._by_digest[digest] = name
        return self._by_digest[digest]


def _layers(calls: Sequence[Binding]) -> list[str]:
    """A name for each call: the model's node's, with the kernel where a node gave several."""
    sources = Counter(b.source for b in calls)
    names: list[str] = []
    for number, binding in enumerate(calls):
        kernel = _kernel(binding)
        name = binding.source or f"{kernel}_{number}"
        once = sources[binding.source] == 1 or not binding.source
        names.append(name if once else f"{name}.{kernel}")
    again = Counter(names)
    return [n if again[n] == 1 else f"{n}_{number}" for number, n in enumerate(names)]


def _kernel(binding: Binding) -> str:
    match binding.call:
        case CallFused(function):
            return function.name
        case CallTIR(func) | CallPacked(func) | Call(func):
            return func
