"""Whole models as C: by this machine's compiler, and on Cortex-M boards without a system."""

from __future__ import annotations

import math
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

import mlc_deploy as mlc
from tests.artifact.models import DIGITS, MODELS, digits
from tests.artifact.test_export import WARNINGS, classified, compiled, gcc
from tests.artifact.test_programs import DRIVER, check_outputs
from tests.cli.command import Command
from tests.graph.test_control import MODELS as LOOPED
from tests.graph.test_control import inputs_of
from tests.models import layers, quantized
from tests.models.onnx_layers import to_onnx

HERE = Path(__file__).parent
TOOLS = {  # a command, Debian's packages that bring it
    "arm-none-eabi-gcc": "gcc-arm-none-eabi libnewlib-arm-none-eabi",
    "qemu-system-arm": "qemu-system-arm",
}
BOARDS = {  # machine, flags of its CPU
    "mps2-an385": ("-mcpu=cortex-m3", "-mfloat-abi=soft"),
    "mps2-an500": ("-mcpu=cortex-m7", "-mfpu=fpv5-d16", "-mfloat-abi=hard"),
}


@pytest.mark.parametrize("name", LOOPED)
def test_loops_and_branches(name: str, tmp_path: Path) -> None:
    function = LOOPED[name]()
    model = mlc.compile(function, "c")
    model.export(tmp_path, "looped")
    weights = sorted(file.name for file in tmp_path.glob("*_weights.c"))
    (tmp_path / "main.c").write_text(DRIVER)
    (tmp_path / "looped.weights").write_bytes(model.weights_bytes)
    given = inputs_of(function)
    (tmp_path / "images.f32").write_bytes(
        b"".join(given[p.name].tobytes() for p in function.params)
    )
    made = compiled(gcc(), tmp_path, "main.c", "mlc_runtime.c", "looped.c", *weights, "-lm")
    assert classified(made) == "all is well"
    check_outputs(function, (tmp_path / "outputs").read_bytes())


def on_cortex_m(model: mlc.CompiledModel, board: str, given: bytes, folder: Path) -> bytes:
    """The output of a model with one input and one output, run by QEMU."""
    for tool, packages in TOOLS.items():
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} here: apt install {packages}")
    header = model.export(folder, "model")
    text = header.read_text()
    assert f"#define MODEL_WEIGHTS_BYTES {len(model.weights_bytes)}" in text
    described = model.metadata.model
    assert described is not None
    flash = [*folder.glob("*.c")]
    rows = ",".join(map(str, given))
    (folder / "given.c").write_text(f"const unsigned char given[] = {{{rows}}};\n")
    out = next(iter(described.outputs))
    defines = {
        "MODEL_HEADER": '"model.h"', "MODEL": "model", "MEMORY_BYTES": "MODEL_MEMORY_BYTES",
        "WEIGHTS": "model_weights", "INPUT_BYTES": len(given),
        "OUTPUT_BYTES": math.prod(map(int, out.shape)) * np.dtype(out.dtype).itemsize,
    }  # fmt: skip
    command = [
        "arm-none-eabi-gcc", "-mthumb", *BOARDS[board], *WARNINGS, "-ffunction-sections",
        "-DMLC_NO_FILES", *(f"-D{k}={v}" for k, v in defines.items()), "-I", folder,
        HERE / "cortex_m.c", folder / "given.c", *flash, "-nostartfiles", "-Wl,--gc-sections",
        "-T", HERE / "cortex_m.ld", "-o", folder / "model.elf", "-lm",
    ]  # fmt: skip
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    run = subprocess.run(
        ["qemu-system-arm", "-M", board, "-nographic", "-monitor", "none", "-serial", "none",
         "-semihosting-config", "enable=on,target=native", "-kernel", folder / "model.elf"],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    return bytes.fromhex(run.stdout + run.stderr)


@pytest.mark.parametrize("board", BOARDS)
def test_digits_on_cortex_m(board: str, tmp_path: Path) -> None:
    with np.load(MODELS / "digits.npz") as archive:
        image = archive["image"]
    out = np.frombuffer(
        on_cortex_m(mlc.compile(DIGITS, "c"), board, image.tobytes(), tmp_path), "f4"
    )
    (wanted,) = digits().evaluate({"image": image}).values()
    np.testing.assert_allclose(out.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-6)


def keywords() -> tuple[onnx.ModelProto, np.ndarray]:
    """An int8 model of keyword spotting's size: 49 x 10 features, 12 words, depthwise convolutions
    of 64 channels; and features to run it on."""
    relu = layers.Activation("relu")
    body: list[layers.Layer] = [layers.Conv(1, 64, 3, 2), relu]
    for _ in range(4):
        body += [layers.Conv(64, 64, 3, groups=64), relu, layers.Conv(64, 64), relu]
    network = layers.chain(*body, layers.GlobalPool(), layers.Flatten(), layers.Linear(64, 12))
    model = to_onnx(network, "keywords", [("features", (1, 1, 49, 10), "float32")])
    rng = np.random.default_rng(5)
    runs = [{"features": rng.normal(size=(1, 1, 49, 10)).astype("f4")} for _ in range(3)]
    made = quantized.quantized(model, runs[:2])
    return made, runs[2]["features"]


@pytest.mark.parametrize("board", BOARDS)
def test_int8_on_cortex_m(board: str, tmp_path: Path) -> None:
    made, features = keywords()
    onnx.save(made, tmp_path / "keywords.onnx")
    model = mlc.compile(tmp_path / "keywords.onnx", "c")
    out = np.frombuffer(on_cortex_m(model, board, features.tobytes(), tmp_path), "f4")
    (wanted,) = model.evaluate({"features": features}).values()
    assert np.ptp(wanted) > 0
    np.testing.assert_allclose(out.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("form", ["obj", "asm", "llvm"])
def test_no_machine_code(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        Command(capsys)("--target", "c", "--emit", form).complaint
        == f"""\
error: the target 'c' is C for any machine, and has no machine code
  in:  --emit {form}
  try: --emit c --output DIR, or --target with a machine: armv7a, aarch64
-> 2"""
    )
