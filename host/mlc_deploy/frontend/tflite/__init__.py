"""Models of TensorFlow Lite (LiteRT), .tflite files, to graphs.

    bytes --file--> tensors and operators --importer--> node by node, by the tables --> graph

Data stay channels last, as in the file. Convolutions transpose to channels first and back; graph
passes remove pairs of transposes. Quantized operators give the same bits as LiteRT's reference
kernels (fixed_point.py, quantized.py).
"""

from __future__ import annotations

from .importer import from_tflite, initial_variables
from .node import TfliteNode

__all__ = ["TfliteNode", "from_tflite", "initial_variables"]
