"""Makes an int8 model of a float32 one, by onnxruntime's own quantizer.

    python scripts/examples/quantize.py MODEL.onnx FOLDER OUT.onnx [--weights per-tensor]
                                        [--activations u8] [--method entropy] [--most N]

FOLDER holds what the model is calibrated with, a run per file: an .npy for a model of one input, or
an .npz with an array for every input, by name. Some hundred inputs as they come in earnest are
enough; --most takes the first N. The result is a QDQ model, whose weights have a scale per output
channel unless told otherwise; `mlc-deploy OUT.onnx` runs it. Needs the extra 'onnxruntime'.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from mlc_deploy import MlcError
from mlc_deploy.errors import ImporterError, InputError

Array = NDArray[Any]
Runs = Sequence[Mapping[str, Array]]
METHODS = ("minmax", "entropy", "percentile")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path, help="calibration inputs, .npy or .npz")
    parser.add_argument("out", type=Path)
    parser.add_argument("--weights", choices=("per-channel", "per-tensor"), default="per-channel")
    parser.add_argument("--activations", choices=("s8", "u8"), default="s8")
    parser.add_argument("--method", choices=METHODS, default="minmax", help="of finding ranges")
    parser.add_argument("--most", type=int, help="how many calibration inputs, at most")
    given = parser.parse_args(arguments)
    try:
        model = read(given.model)
        runs = calibration(model, given.folder, given.most)
        made = quantized(
            model,
            runs,
            per_channel=given.weights == "per-channel",
            activations=given.activations,
            method=given.method,
        )
        onnx.save(made, given.out)
    except MlcError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    sizes = [path.stat().st_size / 1e6 for path in (given.model, given.out)]
    print(f"{given.out}: {len(runs)} inputs, {sizes[0]:.1f} MB -> {sizes[1]:.1f} MB")
    return 0


def read(path: Path) -> onnx.ModelProto:
    """The model in a file. Raises ImporterError."""
    try:
        return onnx.load(path)
    except Exception:  # of the file system, or whatever protobuf raises
        raise ImporterError("this is no ONNX model that can be read", where=str(path)) from None


def calibration(model: onnx.ModelProto, folder: Path, most: int | None = None) -> Runs:
    """The inputs in a folder, each run's by name. Raises InputError."""
    constants = {t.name for t in model.graph.initializer}
    inputs = {i.name: i for i in model.graph.input if i.name not in constants}
    files = sorted(p for p in folder.glob("*") if p.suffix in (".npy", ".npz"))[:most]
    if not files:
        raise InputError(
            "there is nothing to calibrate with",
            where=str(folder),
            mend="a folder of .npy files, or of .npz files with an array per input",
        )
    runs = []
    for path in files:
        try:
            loaded = np.load(path)
        except (OSError, ValueError):
            raise InputError(
                "this is no file of numpy's", where=str(path), mend="numpy.save or numpy.savez"
            ) from None
        run = {next(iter(inputs)): loaded} if path.suffix == ".npy" else dict(loaded)
        lacking = [name for name in inputs if name not in run]
        if lacking:
            raise InputError(
                f"there is no array for the input '{lacking[0]}'",
                where=str(path),
                mend=f"an .npz file with {', '.join(inputs)}",
            )
        for name, info in inputs.items():
            _check(path, info, run[name])
        runs.append({name: run[name] for name in inputs})
    return runs


def _check(path: Path, info: onnx.ValueInfoProto, array: Array) -> None:
    """Raises InputError where an array is not what the model takes."""
    kind = info.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
    shape = [d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim]
    fits = len(shape) == array.ndim and all(
        n in (None, m) for n, m in zip(shape, array.shape, strict=True)
    )
    if array.dtype != dtype or not fits:
        wanted = f"{dtype} [{', '.join('?' if n is None else str(n) for n in shape)}]"
        raise InputError(
            f"the input '{info.name}' is {wanted}, this is {array.dtype} {list(array.shape)}",
            where=str(path),
            mend=f"numpy.save of an array of {wanted}, one run per file",
        )


def quantized(
    model: onnx.ModelProto,
    runs: Runs,
    *,
    per_channel: bool = True,
    activations: str = "s8",
    method: str = "minmax",
) -> onnx.ModelProto:
    """The model with int8 weights, and activations "s8" or "u8". Raises ImporterError where
    onnxruntime is missing."""
    try:
        from onnxruntime.quantization import (
            CalibrationDataReader,
            CalibrationMethod,
            QuantFormat,
            QuantType,
            quantize_static,
        )
        from onnxruntime.quantization.shape_inference import quant_pre_process
    except ImportError:
        raise ImporterError(
            "quantizing needs onnxruntime, which is not installed",
            mend="pip install 'mlc-deploy[onnxruntime]'",
        ) from None

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
            calibrate_method={
                "minmax": CalibrationMethod.MinMax,
                "entropy": CalibrationMethod.Entropy,
                "percentile": CalibrationMethod.Percentile,
            }[method],
        )
        return onnx.load(made)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
