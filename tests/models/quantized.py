"""int8 models of the field: our architectures, quantized by onnxruntime, as many files are.

Weights and calibration inputs are random, so what they compute means nothing; what it costs does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

from tests.models.architectures import inputs, onnx_model

Array = NDArray[Any]
Runs = Sequence[Mapping[str, Array]]
ENDING = "_int8"
QUANTIZED = tuple(f"{name}{ENDING}" for name in ("mobilenet_v1", "resnet18", "mobilenet_v2"))


def quantized_model(
    name: str, activations: str = "s8", per_channel: bool = True
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """An architecture's name and ENDING: the model, and something to run it on."""
    architecture = name.removesuffix(ENDING)
    runs = [inputs(architecture, seed) for seed in (2, 3)]
    made = quantized(
        onnx_model(architecture), runs, activations=activations, per_channel=per_channel
    )
    return made, inputs(architecture)


def quantized(
    model: onnx.ModelProto, runs: Runs, *, per_channel: bool = True, activations: str = "s8"
) -> onnx.ModelProto:
    """The model with int8 weights, and activations "s8" or "u8", calibrated with runs."""

    class Reader(CalibrationDataReader):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            self.runs = iter(runs)

        def get_next(self) -> Mapping[str, Array] | None:
            return next(self.runs, None)

    with tempfile.TemporaryDirectory() as folder:
        given, prepared, made = (Path(folder) / f"{n}.onnx" for n in ("given", "prepared", "made"))
        onnx.save(model, given)
        quant_pre_process(given, prepared, skip_symbolic_shape=True)
        quantize_static(
            prepared,
            made,
            Reader(),
            quant_format=QuantFormat.QDQ,
            per_channel=per_channel,
            activation_type=QuantType.QInt8 if activations == "s8" else QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
        )
        return onnx.load(made)
