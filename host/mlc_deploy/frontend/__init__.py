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
from .torch import from_torch
from .torch_node import Converter, TorchNode
from .values import with_values

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule

__all__ = [
    "Converter",
    "FxNode",
    "NeedsValue",
    "OnnxNode",
    "TorchNode",
    "from_fx",
    "from_model",
    "from_onnx",
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
    """The graph of an .onnx file or its message, a PyTorch program, a .pt2 file, or a graph that
    torch.fx traced.

    from_onnx, from_torch and from_fx describe the other arguments; values makes inputs constants.
    Raises ImporterError.
    """
    of_onnx = isinstance(model, ModelProto)
    if of_onnx or (isinstance(model, (str, Path)) and Path(model).suffix != ".pt2"):
        return from_onnx(model, shapes, dims, values=values, converters=converters)
    if is_traced(model):
        function = from_fx(model, shapes, converters=converters)
    else:
        function = from_torch(model, shapes, dims, converters=converters, trust=trust)
    return with_values(function, values or {}, "the program")
