"""Front ends: model files become graphs."""

from .onnx import from_onnx
from .onnx_node import Converter, OnnxNode

__all__ = ["Converter", "OnnxNode", "from_onnx"]
