"""tvm.relax: graphs, their builder, and the machine that runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..driver.compile import CompiledModel
from ..driver.compile import compile as _compile
from ..driver.virtual_machine import VirtualMachine as _Machine
from ..errors import InputError
from ..graph import BlockBuilder as _Builder
from ..graph import Constant, Function, TensorType, bind_params, tensor_type
from ..graph import Var as _Var
from ..graph import const as _const
from ..graph.nodes import Value
from ..graph.relax import op
from ..graph.shapeless import Shapeless
from ..ir import IRModule
from . import absent
from .arrays import Device, NDArray, array, cpu
from .module import Evaluated

__all__ = [
    "BlockBuilder", "Constant", "Function", "TensorStructInfo", "Var", "VirtualMachine", "build",
    "const", "get_pipeline", "op", "transform",
]  # fmt: skip
Executable = CompiledModel
# Passes of TVM's that mlc_deploy.compile runs by itself: a module stays as it is.
OWN_PASSES = frozenset(
    "AnnotateTIROpPattern CanonicalizeBindings CombineParallelMatmul ConvertToDataflow"
    " DeadCodeElimination DecomposeOpsForInference EliminateCommonSubexpr FoldConstant"
    " FuseOps FuseTIR InlinePrivateFunctions LegalizeOps LiftTransformParams Normalize"
    " RemovePurityChecking RemoveUnusedOutputs RemoveUnusedParameters RewriteDataflowReshape"
    " StaticPlanBlockMemory ToNonDataflow CallTIRRewrite VMShapeLower AttachGlobalSymbol"
    " FastMathTransform ConvertLayout AlterOpImpl".split()
)


def is_graph(mod: Any) -> bool:
    """Whether a function or a module is a graph."""
    if isinstance(mod, IRModule):
        return any(isinstance(f, (Function, Shapeless)) for f in mod.functions.values())
    return isinstance(mod, (Function, Shapeless))


def TensorStructInfo(shape: Sequence[Any], dtype: str = "float32", **_: Any) -> TensorType:
    """The type of a tensor."""
    return tensor_type(shape, dtype)


def Var(name_hint: str, struct_info: TensorType) -> _Var:
    """A parameter of a type."""
    return _Var(name_hint, struct_info)


def const(value: Any, dtype: str | None = None) -> Constant:
    """A constant; of an array of a device, its numbers."""
    return _const(value.numpy() if isinstance(value, NDArray) else value, dtype)


class BlockBuilder(_Builder):
    """bb.emit takes what relax.op makes, and values."""

    @staticmethod
    def current() -> BlockBuilder | None:
        return None

    def emit(self, expr: Any, *args: Any, name_hint: str = "", **attrs: Any) -> Any:  # type: ignore[override]
        if isinstance(expr, Value):
            return expr
        return super().emit(expr, *args, **({"name": name_hint} if name_hint else {}), **attrs)

    def emit_output(self, output: Any, name_hint: str = "") -> Any:
        return super().emit_output(output, name_hint)

    def emit_func_output(self, output: Any, params: Any = None, **named: Any) -> Any:  # type: ignore[override]
        return super().emit_func_output(output, params, **named)

    def finalize(self) -> IRModule:
        return self.get()


def build(mod: Any, target: Any = None, params: Any = None, **options: Any) -> CompiledModel:
    """Compiles a module's main. params: values of parameters, by name."""
    options = {k: v for k, v in options.items() if k in ("shapes", "dims")}
    if params:
        mod = bind_params(mod, {name: np.asarray(value) for name, value in params.items()})
    return _compile(mod, target, **options)


class VirtualMachine:
    """A compiled model on a device. Its functions take arrays and give arrays."""

    def __init__(self, rt_mod: CompiledModel, device: Any = None, **_: Any) -> None:
        devices = device if isinstance(device, (list, tuple)) else [device]
        self.device: Device = devices[0] or cpu()
        self._machine = _Machine(rt_mod, self.device.session)
        self._inputs: tuple[Any, ...] = ()
        self._outputs: Any = None

    def __getitem__(self, name: str) -> Callable[..., Any]:
        function = self._machine[name]

        def run(*args: Any) -> Any:
            return self._given(function(*map(_array, args)))

        return run

    def _given(self, made: Any) -> Any:
        if isinstance(made, tuple):
            return [array(np.asarray(part), self.device) for part in made]
        return array(np.asarray(made), self.device)

    def set_input(self, func_name: str, *args: Any, **named: Any) -> None:
        self._inputs = args

    def invoke_stateful(self, func_name: str) -> None:
        self._outputs = self[func_name](*self._inputs)

    def get_outputs(self, func_name: str) -> Any:
        return self._outputs

    def time_evaluator(
        self, func_name: str, dev: Any = None, **options: Any
    ) -> Callable[..., Evaluated]:
        options.pop("f_preproc", None)
        timed = self._machine.time_evaluator(func_name, **options)
        return lambda *args: Evaluated(timed(*map(_array, args)))


def _array(value: Any) -> Any:
    return value.numpy() if isinstance(value, NDArray) else np.asarray(value)


def get_pipeline(name: str = "zero", **_: Any) -> Callable[[Any], Any]:
    """A module stays as it is: compile has its own pipeline."""
    return _same


def _same(mod: Any) -> Any:
    return mod


class _Transform:
    """relax.transform: passes of modules."""

    @staticmethod
    def BindParams(func_name: str, params: Mapping[str, Any]) -> Callable[[Any], Any]:
        values = {name: np.asarray(value) for name, value in params.items()}
        return lambda mod: bind_params(mod, values, func_name)

    def __getattr__(self, name: str) -> Any:
        if name in OWN_PASSES:
            return lambda *args, **named: _same
        raise absent.error(f"tvm.relax.transform.{name}", [*OWN_PASSES, "BindParams"])


transform = _Transform()


class analysis:
    """relax.analysis."""

    @staticmethod
    def well_formed(mod: Any, check_struct_info: bool = True) -> bool:
        """A graph that was read or built is well formed: others are refused."""
        if not is_graph(mod):
            raise InputError("this is not a graph", mend="an IRModule with an @R.function")
        return True


def __getattr__(name: str) -> Any:
    raise absent.error(f"tvm.relax.{name}", __all__)
