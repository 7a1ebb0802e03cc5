"""The examples run, and cost what the documentation says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[1] / "scripts" / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("board", "most"), [("qemu://cortex-a72", 1.20), ("qemu://cortex-a7", 1.45)]
)
def test_matmul_in_few_instructions(board: str, most: float) -> None:
    """512^3, packing included, per M*N*K/4 vector multiply-accumulates."""
    assert example("matmul").instructions_per_mac(board, 512) <= most


@pytest.mark.parametrize(
    ("board", "target"), [("local://", "host"), ("qemu://cortex-a7", "armv7a")]
)
def test_mixed_module(board: str, target: str) -> None:
    example("mixed_module").main(board, target)  # checks its results itself


@pytest.mark.parametrize("n", [1, 7, 50])
def test_matmul_of_any_size(n: int) -> None:
    example("matmul").instructions_per_mac("qemu://cortex-a72", n)  # checks its result itself
