"""The converters by operator."""

from __future__ import annotations

from .detection import DETECTION
from .elementwise import ELEMENTWISE
from .fourier import FOURIER
from .layers import LAYERS
from .node import Converter
from .shapes import SHAPES

CONVERTERS: dict[str, Converter] = {**DETECTION, **ELEMENTWISE, **LAYERS, **SHAPES, **FOURIER}
