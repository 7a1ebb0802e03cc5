"""The examples run, and cost what the documentation says."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import mlc_deploy as mlc
from tests import own_tables
from tests.sessions import aarch64, armv7, board_named, local

__all__ = ["aarch64", "armv7", "local"]  # fixtures

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "scripts" / "examples"
MODELS = ROOT / "host" / "mlc_deploy" / "models"


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


def test_quantize(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The shipped classifier, quantized by its own test images, classifies them as before."""
    quantize = example("quantize")
    digits = np.load(MODELS / "digits.npz")
    np.save(tmp_path / "images.npy", digits["image"])
    for activations in ("s8", "u8"):
        out = tmp_path / f"{activations}.onnx"
        options = ["--activations", activations, "--weights", "per-channel"]
        given = [str(MODELS / "digits_cnn.onnx"), str(tmp_path), str(out), *options]
        assert quantize.main(given) == 0
        model = mlc.compile(out, "armv7a")
        (found,) = model.evaluate({"image": digits["image"]}).values()
        assert (found.argmax(1) == digits["label"]).all()
        with mlc.connect("qemu://cortex-a7") as board:
            done = mlc.deploy(model, board, {"image": digits["image"]})
        assert done.ok and done.outputs["probability"].shape == (16, 10)
    assert capsys.readouterr().out.count("1 inputs, ") == 2


def test_quantize_says_what_is_wrong(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    golden: Callable[..., None],
) -> None:
    quantize = example("quantize")
    monkeypatch.chdir(tmp_path)
    model, images = str(MODELS / "digits_cnn.onnx"), np.load(MODELS / "digits.npz")["image"]
    for folder in ("empty", "shape", "name", "damaged", "fine"):
        Path(folder).mkdir()
    np.save("shape/a.npy", images[:3])
    np.savez("name/a.npz", picture=images)
    Path("damaged/a.npy").write_bytes(b"no array")
    np.save("fine/a.npy", images)
    Path("no.onnx").write_bytes(b"no model")
    said = []
    for arguments in (
        ("no.onnx", "fine"),
        *((model, folder) for folder in ("empty", "shape", "name", "damaged")),
    ):
        assert quantize.main([*arguments, "out.onnx"]) == 2
        said.append(capsys.readouterr().err)
    monkeypatch.setitem(sys.modules, "onnxruntime.quantization", None)
    assert quantize.main([model, "fine", "out.onnx"]) == 2
    said.append(capsys.readouterr().err)
    assert not Path("out.onnx").exists()
    golden("\n".join(said), "example_quantize_refusals")


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
