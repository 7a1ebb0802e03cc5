"""Front ends: models become graphs.

ONNX's is imported at once, the others on use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx import ModelProto

from ..graph.nodes import Function
from ..ir import Dim
from .onnx import from_onnx
from .onnx_node import NeedsValue, OnnxNode
from .torch_node import Converter, TorchNode
from .values import with_values

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule

    from .fx import FxNode, from_fx
    from .tflite import TfliteNode, from_tflite
    from .torch import from_torch

TFLITE = (".tflite", ".lite")
HOMES = {
    "FxNode": ".fx",
    "TfliteNode": ".tflite",
    "from_fx": ".fx",
    "from_tflite": ".tflite",
    "from_torch": ".torch",
}

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


def __getattr__(name: str) -> object:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(HOMES[name], __name__), name)


def from_model(
    model: str | Path | ModelProto | ExportedProgram | GraphModule,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, Dim | str] | None = None,
    converters: Mapping[Any, Converter] | None = None,
    trust: bool = False,
    values: Mapping[str, Any] | None = None,
) -> Function:
    """The graph of an .onnx file or a ModelProto, a .tflite file, a PyTorch program or its .pt2
    file, or a graph that torch.fx traced.

    from_onnx, from_tflite, from_torch and from_fx describe the other arguments; values makes inputs
    constants. Raises ImporterError.
    """
    kind = Path(model).suffix if isinstance(model, (str, Path)) else None
    if isinstance(model, ModelProto) or (kind is not None and kind not in (".pt2", *TFLITE)):
        return from_onnx(model, shapes, dims, values=values, converters=converters)
    if isinstance(model, (str, Path)) and kind in TFLITE:
        from .tflite import from_tflite

        function = from_tflite(model, shapes, dims, converters=converters)
    elif _is_traced(model):
        from .fx import from_fx

        function = from_fx(model, shapes, converters=converters)
    else:
        from .torch import from_torch

        function = from_torch(model, shapes, dims, converters=converters, trust=trust)
    return with_values(function, values or {}, "the program")


def _is_traced(model: object) -> bool:
    """Whether it is a torch.fx.GraphModule; does not import torch."""
    return any(
        kind.__module__ == "torch.fx.graph_module" and kind.__name__ == "GraphModule"
        for kind in type(model).__mro__
    )
