"""The examples run, and cost what the documentation says."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests import own_tables
from tests.sessions import aarch64, armv7, board_named, local

__all__ = ["aarch64", "armv7", "local"]  # fixtures

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "scripts" / "examples"


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


FROM_TVM = sorted(p.stem for p in (EXAMPLES / "from_tvm").glob("*.py") if p.stem != "running")
BOARDS = ("local", "aarch64")
ARM32 = ("relax_mlp",)  # that run on the other ARM, too


@pytest.mark.parametrize(
    ("name", "board"),
    [
        *((n, b) for n in FROM_TVM if n != "from_fx" for b in BOARDS),
        *((n, "armv7") for n in ARM32),
    ],
)
def test_from_tvm(
    name: str, board: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """What TVM's texts teach runs as they write it; each example checks its results itself."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "from_tvm"))
    importlib.import_module(name).main(board_named(request, board))


@pytest.mark.torch
@pytest.mark.parametrize("board", BOARDS)
def test_from_fx(
    board: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "from_tvm"))
    importlib.import_module("from_fx").main(board_named(request, board))


def test_the_table_of_examples_is_whole() -> None:
    text = (ROOT / "docs" / "reference" / "from_tvm.md").read_text()
    assert [name for name in FROM_TVM if f"`{name}.py`" not in text] == []


@pytest.fixture(autouse=True)
def tables() -> Iterator[None]:
    """What an example registers is gone after it."""
    with own_tables.restored():
        yield
