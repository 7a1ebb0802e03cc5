"""Small .tflite files, written with the schema's package, and what LiteRT computes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
import tflite
from numpy.typing import NDArray

Array = NDArray[Any]
KINDS = {
    "float32": "FLOAT32", "float16": "FLOAT16", "int8": "INT8", "uint8": "UINT8",
    "int16": "INT16", "int32": "INT32", "int64": "INT64", "bool": "BOOL", "resource": "RESOURCE",
    "complex64": "COMPLEX64",
}  # fmt: skip


@dataclass
class Model:
    """A subgraph that grows by tensors and operators; `build` gives the file's bytes."""

    tensors: list[dict[str, Any]] = field(default_factory=list)
    operators: list[dict[str, Any]] = field(default_factory=list)
    variables: dict[str, Array] = field(default_factory=dict)  # their first values
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def tensor(
        self,
        shape: Sequence[int],
        dtype: str = "float32",
        scale: Any = None,
        zero: Any = 0,
        data: Array | None = None,
        axis: int = 0,
        signature: Sequence[int] = (),
    ) -> int:
        scales = None if scale is None else np.atleast_1d(np.asarray(scale, np.float32))
        zeros = None
        if scales is not None:
            zeros = np.broadcast_to(np.asarray(zero, np.int64), scales.shape).copy()
        self.tensors.append(
            {"name": f"t{len(self.tensors)}", "shape": list(shape), "dtype": dtype, "data": data,
             "scales": scales, "zeros": zeros, "axis": axis, "signature": list(signature)}
        )  # fmt: skip
        return len(self.tensors) - 1

    def input(self, shape: Sequence[int], dtype: str = "float32", **more: Any) -> int:
        self.inputs.append(self.tensor(shape, dtype, **more))
        return self.inputs[-1]

    def constant(self, data: Any, dtype: str, **more: Any) -> int:
        array = np.asarray(data, dtype)
        return self.tensor(array.shape, dtype, data=array, **more)

    def op(
        self,
        name: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        options: str = "",
        custom: bytes = b"",
        version: int = 1,
        **values: Any,
    ) -> None:
        """name: the schema's, or "CUSTOM name". options: the schema's table, with values."""
        self.operators.append(
            {"name": name, "inputs": list(inputs), "outputs": list(outputs), "options": options,
             "values": values, "custom": custom, "version": version}
        )  # fmt: skip

    def variable(self, name: str, first: Array) -> tuple[int, int]:
        """A variable's handle, and its value before the run."""
        self.variables[name] = first
        handle = self.handle(name)
        value = self.tensor(first.shape, str(first.dtype))
        self.op("READ_VARIABLE", [handle], [value], "ReadVariableOptions")
        return handle, value

    def handle(self, name: str) -> int:
        handle = self.tensor((), "resource")
        self.op("VAR_HANDLE", [], [handle], "VarHandleOptions", SharedName=name, Container="")
        return handle

    def build(self) -> bytes:
        return _Writer(self).bytes()


class _Writer:
    def __init__(self, model: Model) -> None:
        self.model = model
        self.b = flatbuffers.Builder(1024)

    def table(self, kind: str, **fields: Any) -> int:
        """A table of the schema; fields that are None are left out."""
        getattr(tflite, f"{kind}Start")(self.b)
        for name, value in fields.items():
            if value is not None:
                getattr(tflite, f"{kind}Add{name}")(self.b, value)
        end: int = getattr(tflite, f"{kind}End")(self.b)
        return end

    def numbers(self, values: Any, dtype: str) -> int:
        place: int = self.b.CreateNumpyVector(np.ascontiguousarray(values, dtype))
        return place

    def tables(self, places: Sequence[int]) -> int:
        self.b.StartVector(4, len(places), 4)
        for place in reversed(places):
            self.b.PrependUOffsetTRelative(place)
        end: int = self.b.EndVector()
        return end

    def text(self, value: str) -> int:
        place: int = self.b.CreateString(value)
        return place

    def bytes(self) -> bytes:
        self.buffers = [self.table("Buffer")]
        self.keys: list[tuple[str, int]] = []
        graphs = [self.model]
        if self.model.variables:
            first = Model()
            for name, value in self.model.variables.items():
                places = [first.handle(name), first.constant(value, str(value.dtype))]
                first.op("ASSIGN_VARIABLE", places, [], "AssignVariableOptions")
            self.model.operators.insert(
                0, {"name": "CALL_ONCE", "inputs": [], "outputs": [], "options": "CallOnceOptions",
                    "values": {"InitSubgraphIndex": 1}, "custom": b"", "version": 1},
            )  # fmt: skip
            graphs.append(first)
        subgraphs = [self.subgraph(graph) for graph in graphs]
        codes = [self.code(name, version) for name, version in self.keys]
        root = self.table(
            "Model",
            Version=3,
            OperatorCodes=self.tables(codes),
            Subgraphs=self.tables(subgraphs),
            Buffers=self.tables(self.buffers),
        )
        self.b.Finish(root, b"TFL3")
        return bytes(self.b.Output())

    def subgraph(self, model: Model) -> int:
        tensors = []
        for tensor in model.tensors:
            number = 0
            if tensor["data"] is not None:
                data = np.ascontiguousarray(tensor["data"]).tobytes()
                self.buffers.append(self.table("Buffer", Data=self.numbers(list(data), "uint8")))
                number = len(self.buffers) - 1
            tensors.append(self.tensor(tensor, number))
        operators = []
        for op in model.operators:
            key = (op["name"], op["version"])
            if key not in self.keys:
                self.keys.append(key)
            operators.append(self.operator(op, self.keys.index(key)))
        return self.table(
            "SubGraph",
            Tensors=self.tables(tensors),
            Inputs=self.numbers(model.inputs, "int32"),
            Outputs=self.numbers(model.outputs, "int32"),
            Operators=self.tables(operators),
        )

    def tensor(self, tensor: Mapping[str, Any], buffer: int) -> int:
        quantization = None
        if tensor["scales"] is not None:
            quantization = self.table(
                "QuantizationParameters",
                Scale=self.numbers(tensor["scales"], "float32"),
                ZeroPoint=self.numbers(tensor["zeros"], "int64"),
                QuantizedDimension=tensor["axis"],
            )
        return self.table(
            "Tensor",
            Shape=self.numbers(tensor["shape"], "int32"),
            Type=getattr(tflite.TensorType, KINDS[tensor["dtype"]]),
            Buffer=buffer,
            Name=self.text(tensor["name"]),
            Quantization=quantization,
            ShapeSignature=self.numbers(tensor["signature"], "int32"),
        )

    def operator(self, op: Mapping[str, Any], code: int) -> int:
        values = {
            name: self.numbers(value, "int32") if isinstance(value, (list, tuple))
            else self.text(value) if isinstance(value, str) else value
            for name, value in op["values"].items()
        }  # fmt: skip
        options = self.table(op["options"], **values) if op["options"] else None
        kind = getattr(tflite.BuiltinOptions, op["options"]) if op["options"] else None
        custom = self.numbers(list(op["custom"]), "uint8") if op["custom"] else None
        return self.table(
            "Operator",
            OpcodeIndex=code,
            Inputs=self.numbers(op["inputs"], "int32"),
            Outputs=self.numbers(op["outputs"], "int32"),
            BuiltinOptionsType=kind,
            BuiltinOptions=options,
            CustomOptions=custom,
        )

    def code(self, name: str, version: int) -> int:
        builtin, _, custom = name.partition(" ")
        number = getattr(tflite.BuiltinOperator, builtin)
        text = self.text(custom) if custom else None
        return self.table(
            "OperatorCode",
            DeprecatedBuiltinCode=min(number, 127),
            BuiltinCode=number,
            CustomCode=text,
            Version=version,
        )


def drawn(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> Array:
    """Random numbers: of the whole range of integers, of a normal distribution."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return rng.normal(size=shape).astype(kind)
    if kind.kind == "b":
        return rng.random(shape) < 0.5
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    return rng.integers(low, high, shape, kind, endpoint=True)


def by_litert(model: bytes, inputs: Sequence[Array], kernels: str = "BUILTIN_REF") -> list[Array]:
    """The outputs by LiteRT's reference kernels; of operators without one by its others."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    try:
        interpreter = Interpreter(
            model_content=model, experimental_op_resolver_type=OpResolverType[kernels]
        )
    except ValueError:
        kind = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        interpreter = Interpreter(model_content=model, experimental_op_resolver_type=kind)
    interpreter.allocate_tensors()
    for detail, array in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]
