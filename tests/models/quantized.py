"""int8 models of the field: our architectures, quantized by onnxruntime as the example does it.

Weights and calibration inputs are random, so what they compute means nothing; what it costs does.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
from numpy.typing import NDArray

from tests.models.architectures import inputs, onnx_model

Array = NDArray[Any]
EXAMPLE = Path(__file__).parents[2] / "scripts" / "examples" / "quantize.py"
ENDING = "_int8"
QUANTIZED = tuple(f"{name}{ENDING}" for name in ("mobilenet_v1", "resnet18", "mobilenet_v2"))


@cache
def example() -> ModuleType:
    """scripts/examples/quantize.py"""
    spec = importlib.util.spec_from_file_location("quantize_example", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def quantized_model(
    name: str, activations: str = "s8", per_channel: bool = True
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """An architecture's name and ENDING: the model, and something to run it on."""
    architecture = name.removesuffix(ENDING)
    runs = [inputs(architecture, seed) for seed in (2, 3)]
    made = example().quantized(
        onnx_model(architecture), runs, activations=activations, per_channel=per_channel
    )
    return made, inputs(architecture)
