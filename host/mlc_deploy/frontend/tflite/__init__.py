"""Models of TensorFlow Lite (LiteRT), .tflite files, to graphs.

    bytes --file--> tensors and operators --importer--> node by node, by the tables --> graph

Data stay as the file has them, channels last: convolutions transpose to channels first and back,
and the graph's passes remove the pairs. Quantized operators compute what LiteRT's reference kernels
compute, bit by bit (fixed_point.py, quantized.py).
"""

from __future__ import annotations

from .importer import from_tflite, initial_variables
from .node import TfliteNode

__all__ = ["TfliteNode", "from_tflite", "initial_variables"]
