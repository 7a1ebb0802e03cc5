"""Front ends: models become graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..graph.nodes import Function
from .onnx import from_onnx
from .onnx_node import NeedsValue, OnnxNode
from .torch import from_torch, is_program
from .torch_node import Converter, TorchNode

if TYPE_CHECKING:
    from torch.export import ExportedProgram

__all__ = [
    "Converter",
    "NeedsValue",
    "OnnxNode",
    "TorchNode",
    "from_model",
    "from_onnx",
    "from_torch",
]


def from_model(
    model: str | Path | ExportedProgram,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    converters: Mapping[str, Converter] | None = None,
    trust: bool = False,
) -> Function:
    """The graph of an .onnx file, or of a PyTorch program or the .pt2 file it was saved in.

    The other arguments are as from_onnx and from_torch take them. Raises ImporterError.
    """
    if is_program(model) or not isinstance(model, (str, Path)) or Path(model).suffix == ".pt2":
        return from_torch(model, shapes, dims, converters=converters, trust=trust)
    return from_onnx(model, shapes, dims, converters=converters)
