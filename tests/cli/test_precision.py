"""--precision: what it computes in, what the record says, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.artifact.models import digits
from tests.cli.command import Command

CORTEX_A76 = "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76 -device=arm_cpu"


@pytest.mark.skipif(not shutil.which("qemu-aarch64"), reason="no QEMU here: apt install qemu-user")
def test_float16(mlc_deploy: Command) -> None:
    options = ("--target", CORTEX_A76, "--board", "qemu://cortex-a76", "--json", "-")
    single, half = (
        mlc_deploy(*options, "--precision", precision) for precision in ("float32", "float16")
    )
    assert (single.status, half.status) == (0, 0)
    assert (single.record["precision"], half.record["precision"]) == ("float32", "float16")
    dtypes = {layer["kernel"]: layer["dtype"] for layer in half.record["layers"]}
    assert dtypes["conv2d_add_relu"] == "float16"
    assert [output["dtype"] for output in half.record["outputs"]] == ["float32"]
    assert half.record["predictions"] == single.record["predictions"]
    assert half.record["weights_bytes"] < 0.7 * single.record["weights_bytes"]
    if single.record["instructions"]:
        assert half.record["instructions"] < 0.75 * single.record["instructions"]


@pytest.mark.skipif(not shutil.which("qemu-aarch64"), reason="no QEMU here: apt install qemu-user")
def test_a_target_that_hides_what_the_board_has(mlc_deploy: Command) -> None:
    ended = mlc_deploy("--target", "aarch64", "--board", "qemu://cortex-a76",
                       "--precision", "float16")  # fmt: skip
    assert ended.status == 0
    warning = (
        "warning: the board qemu://cortex-a76 has fullfp16, which code for aarch64 does not use: "
        "float16 is stored, and computed in float32 (without --target, code is for the board)"
    )
    assert warning in ended.stderr
    for others in (("--precision", "float32"), ("--precision", "float16", "--target", CORTEX_A76)):
        target = () if "--target" in others else ("--target", "aarch64")
        ended = mlc_deploy(*target, "--board", "qemu://cortex-a76", *others)
        assert ended.status == 0 and "does not use" not in ended.stderr


def test_a_saved_model_knows_its_precision(mlc_deploy: Command, folder: Path) -> None:
    made = mlc_deploy("--board", "none", "--precision", "float16", "--save", "digits.mlc")
    assert made.status == 0
    ended = mlc_deploy("digits.mlc", "--board", "local://", "--json", "-")
    assert ended.status == 0 and ended.record["precision"] == "float16"


def test_refusals(mlc_deploy: Command, folder: Path) -> None:
    saved = digits()
    saved.save(folder / "digits.mlc")
    assert mlc_deploy("--precision", "flaot16").complaint == (
        "error: there is no such precision\n"
        "  in:  --precision flaot16\n"
        "  try: float32 or float16 or int8\n"
        "-> 2"
    )
    assert mlc_deploy("digits.mlc", "--precision", "float16").complaint == (
        f"error: the model is compiled already, for {saved.target.short_name}\n"
        "  in:  digits.mlc --precision\n"
        "  try: without --precision, or the model that it was compiled from\n"
        "-> 2"
    )
    ended = mlc_deploy("--target", "armv7a", "--board", "none", "--precision", "float16")
    assert ended.complaint == (
        "error: the target has no instructions for float16, so it would be slower than "
        "float32\n"
        "  in:  armv7a\n"
        "  try: -mattr=+fp16, where the CPU has it\n"
        "-> 2"
    )
