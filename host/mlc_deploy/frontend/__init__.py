"""Front ends: models become graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx import ModelProto

from ..graph.nodes import Function
from .fx import FxNode, from_fx, is_traced
from .onnx import from_onnx
from .onnx_node import NeedsValue, OnnxNode
from .tflite import TfliteNode, from_tflite
from .torch import from_torch
from .torch_node import Converter, TorchNode
from .values import with_values

TFLITE = (".tflite", ".lite")

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule

__all__ = [
    "Converter",
    "FxNode",
    "NeedsValue",
    "OnnxNode",
    "TfliteNode",
    "TorchNode",
    "from_fx",
    "from_model",
    "from_onnx",
    "from_tflite",
    "from_torch",
]


def from_model(
    model: str | Path | ModelProto | ExportedProgram | GraphModule,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int | str] | None = None,
    converters: Mapping[Any, Converter] | None = None,
    trust: bool = False,
    values: Mapping[str, Any] | None = None,
) -> Function:
    """The graph of an .onnx file or its message, a .tflite file, a PyTorch program, a .pt2 file, or
    a graph that torch.fx traced.

    from_onnx, from_tflite, from_torch and from_fx describe the other arguments; values makes inputs
    constants. Raises ImporterError.
    """
    kind = Path(model).suffix if isinstance(model, (str, Path)) else None
    if isinstance(model, ModelProto) or (kind is not None and kind not in (".pt2", *TFLITE)):
        return from_onnx(model, shapes, dims, values=values, converters=converters)
    if isinstance(model, (str, Path)) and kind in TFLITE:
        function = from_tflite(model, shapes, dims, converters=converters)
    elif is_traced(model):
        function = from_fx(model, shapes, converters=converters)
    else:
        function = from_torch(model, shapes, dims, converters=converters, trust=trust)
    return with_values(function, values or {}, "the program")
