"""Saved models on boards: the same results as compiled ones, and no compiler."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.artifact import save, save_folder
from mlc_deploy.graph import BlockBuilder
from mlc_targets.object_format import section_of
from tests.artifact.models import digits, expected, images

WITHOUT_COMPILER = """
import sys
import numpy as np
import mlc_deploy as mlc
model = mlc.load_model(sys.argv[1])
with mlc.connect("local://") as board:
    done = mlc.deploy(model, board, {"image": np.load(sys.argv[2])})
done.record()
np.save(sys.argv[3], done.outputs["probability"])
heavy = ("llvmlite", "onnx", "mlc_deploy.ir", "mlc_deploy.codegen", "mlc_deploy.graph")
print([name for name in heavy if name in sys.modules])
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return digits().save(tmp_path / "digits.mlc")


def test_same_as_what_was_saved(file: Path) -> None:
    compiled, saved = digits(), mlc.load_model(str(file))
    assert repr(saved) == "<SavedModel digits_cnn for x86_64 (base)>"
    assert saved.object_bytes == compiled.object_bytes
    assert saved.weights_bytes == compiled.weights_bytes
    assert saved.metadata == compiled.metadata and saved.target == compiled.target


def test_runs_without_the_compiler(file: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "image.npy", images())
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_COMPILER, file, tmp_path / "image.npy", tmp_path / "y.npy"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert result.stdout == "[]\n"
    right = expected()["probability"]
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), right, rtol=1e-4, atol=1e-6)


def test_records_and_comparisons(file: Path) -> None:
    saved = mlc.load_model(file)
    right = dict(expected())
    with mlc.connect("local://") as board:
        plain = mlc.deploy(saved, board, {"image": images()})
        held = mlc.deploy(saved, board, {"image": images()}, expect=right)
        right["probability"] = right["probability"] + 1
        wrong = mlc.deploy(saved, board, {"image": images()}, expect=right)
        module = board.load(saved)
        outputs = module.run({"image": images()})
    np.testing.assert_array_equal(outputs["probability"], plain.outputs["probability"])
    records = [done.record("digits") for done in (plain, held, wrong)]
    assert [record["ok"] for record in records] == [None, True, False]
    assert [record["reference"] for record in records] == [None, "given", "given"]
    assert plain.ok and held.ok and not wrong.ok
    (output,) = records[0]["outputs"]
    assert output["ok"] is output["max_abs_err"] is None and output["shape"] == [16, 10]
    assert all(record["compile_s"] is None for record in records)
    assert len(records[0]["layers"]) == len(digits().program.calls)


def test_inputs_that_are_indices_are_drawn_in_range(tmp_path: Path) -> None:
    builder = BlockBuilder("main")
    table = builder.param("table", (5, 3), "float32")
    tokens = builder.param("tokens", (40,), "int64")
    model = mlc.compile(builder.finish([builder.emit("gather", table, tokens, axis=0)], ["y"]))
    saved = mlc.load_model(model.save(tmp_path / "gather.mlc"))
    assert saved.index_extents == {"tokens": 5}
    with mlc.connect("local://") as board:
        done = mlc.deploy(saved, board)
    drawn = done.inputs["tokens"]
    assert set(drawn.tolist()) == set(range(5))
    np.testing.assert_array_equal(done.outputs["y"], done.inputs["table"][drawn])


def test_levels(tmp_path: Path) -> None:
    """The best program for what a board has; blobs that are equal are there once."""
    target = "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76"
    base, dotprod, other = digits("aarch64"), mlc.compile(digits().reference, target), digits()
    named = {"dotprod": dotprod, "x86": other, "b": base}
    more = [replace(program, level=name) for name, program in named.items()]
    path = save(tmp_path / "fat.mlc", base, more)
    assert path.stat().st_size < 3 * len(base.object_bytes) + 20_000 + sum(
        len(blob) for blob in {m.weights_bytes for m in (base, dotprod, other)}
    ) + len(other.object_bytes)
    saved = mlc.load_model(path)
    assert saved.target == base.target and len(saved.programs) == 4
    features = frozenset(base.target.required_features)

    def level(machine: str, has: frozenset[str]) -> str:
        (program,) = saved.fitting(machine, has).programs
        return program.level

    assert level("aarch64", features) == "b"  # the last that fits
    three = replace(saved, programs=saved.programs[:3])
    assert [p.level for p in three.fitting("aarch64", features).programs] == ["base"]
    rich = features | frozenset(dotprod.target.required_features)
    assert [p.level for p in three.fitting("aarch64", rich).programs] == ["dotprod"]
    assert [p.level for p in three.fitting("x86_64", other.metadata.features).programs] == ["x86"]
    assert [p.level for p in three.fitting("arm", features).programs] == ["base"]  # none runs
    with mlc.connect("local://") as board:
        done = mlc.deploy(three, board, {"image": images()}, expect=expected())
    assert done.ok and done.model.target == other.target


@dataclass(frozen=True)
class Calls:
    """A compiled model with a call of a Python function in it."""

    model: mlc.CompiledModel

    @dataclass(frozen=True)
    class Call:
        name: str

    @property
    def host_calls(self) -> list[Call]:
        return [self.Call("env.linear")]

    def __getattr__(self, name: str) -> object:
        return getattr(self.model, name)


def test_python_functions_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(mlc.ArtifactError) as caught:
        save(tmp_path / "model.mlc", Calls(digits()))  # type: ignore[arg-type]
    assert str(caught.value) == (
        "the model calls Python functions, which a board without this machine cannot\n"
        "  in:  env.linear\n  try: operators in their place"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "arm"])
def test_sections_of_objects(machine: str) -> None:
    model = digits(machine)
    section = section_of(model.object_bytes, ".mlc")
    assert section in model.object_bytes and b"probability" in section
    with pytest.raises(ValueError, match=r"no section '\.text2'"):
        section_of(model.object_bytes, ".text2")
    data = bytearray(model.object_bytes)
    for at in range(0, 64):  # a header that lies
        for value in (0, 0xFF):
            mutant = data.copy()
            mutant[at] = value
            try:
                found = section_of(bytes(mutant), ".mlc")
            except ValueError:
                continue
            assert len(found) <= len(mutant)
    for size in range(0, len(data) - 64, 97):
        with pytest.raises(ValueError):
            section_of(bytes(data[:size]), ".mlc")


def test_a_folder_says_how_it_is_run(tmp_path: Path) -> None:
    save_folder(tmp_path / "board", digits(), "two words")
    assert (tmp_path / "board" / "README").read_text() == (
        "./mlc-runtime run 'two words.mlc' --input image=image.npy --output results\n"
    )
