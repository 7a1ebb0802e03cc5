"""Several CPU levels in one --target: which are compiled, saved, run and recorded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import mlc_deploy as mlc
from tests.cli.command import MODELS, Command

CNN = MODELS / "digits_cnn.onnx"
LEVELS = "aarch64:base,dotprod"

needs_qemu = pytest.mark.skipif(
    not shutil.which("qemu-aarch64"), reason="no QEMU here: apt install qemu-user"
)


@needs_qemu
def test_the_board_takes_the_best(mlc_deploy: Command, tmp_path: Path) -> None:
    saved = tmp_path / "digits.mlc"
    ended = mlc_deploy(
        "--target", LEVELS, "--board", "qemu://cortex-a76", "--save", str(saved), "--json", "-"
    )
    assert ended.status == 0 and ended.record["level"] == "dotprod"
    assert ended.record["target"].endswith("-mattr=+dotprod")
    assert "digits_cnn for aarch64 with dotprod on qemu://cortex-a76" in ended.stderr
    assert [p.level for p in mlc.load_model(saved).programs] == ["base", "dotprod"]
    again = mlc_deploy(str(saved), "--board", "qemu://cortex-a72", "--json", "-")
    assert again.record["level"] == "base"


def test_one_level_at_a_time(mlc_deploy: Command, tmp_path: Path) -> None:
    assert mlc_deploy("--target", LEVELS, "--emit", "asm").complaint == (
        "error: --emit gives one CPU level, not 2\n"
        "  in:  --target aarch64:base,dotprod\n"
        "  try: --target aarch64:dotprod\n"
        "-> 2"
    )
    assert mlc_deploy("inspect", str(CNN), "--target", LEVELS).complaint == (
        "error: inspect looks at one CPU level, not 2\n"
        "  in:  --target aarch64:base,dotprod\n"
        "  try: --target aarch64:dotprod\n"
        "-> 2"
    )
    db = str(tmp_path / "tuned.jsonl")
    assert mlc_deploy("tune", str(CNN), "--target", LEVELS, "--db", db).complaint == (
        "error: tune is for one CPU level, not 2\n"
        "  in:  --target aarch64:base,dotprod\n"
        "  try: --target aarch64:dotprod\n"
        "-> 2"
    )
    kernels = tmp_path / "kernels.o"
    refused = mlc_deploy("--target", LEVELS, "--board", "none", "--save", str(kernels))
    assert refused.complaint == (
        "error: a file of kernels holds one CPU level, not 2\n"
        f"  in:  --save {kernels}\n"
        "  try: a name that ends in .mlc, or one level in --target\n"
        "-> 2"
    )
    assert not kernels.exists()
