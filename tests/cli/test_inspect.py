"""`mlc-deploy inspect`: the tables, the record, the passes, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mlc_deploy.driver.model_graph import model_graph
from mlc_deploy.graph import lower_graph
from mlc_deploy.graph.lower import unscheduled
from mlc_deploy.ir import structural_hash
from mlc_deploy.schedule import Schedule
from mlc_deploy.tuned import Database, Measured, Record, pack
from mlc_targets import Target
from tests.artifact.models import digits
from tests.cli.command import MODELS, Command

Golden = Callable[..., None]
CNN = MODELS / "digits_cnn.onnx"


def attention(file: Path) -> None:
    """A matrix product on three dimensions, of a batch that is a name; a GELU spelled out."""
    node = helper.make_node
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "w": rng.normal(size=(8, 16)).astype(np.float32), "b": np.ones(16, np.float32),
        "root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5),
    }  # fmt: skip
    nodes = [
        node("MatMul", ["x", "w"], ["product"], name="dense"),
        node("Add", ["product", "b"], ["sum"], name="bias"),
        node("Div", ["sum", "root"], ["scaled"]),
        node("Erf", ["scaled"], ["erf"]),
        node("Add", ["erf", "one"], ["gate"]),
        node("Mul", ["sum", "gate"], ["gated"]),
        node("Mul", ["gated", "half"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "gelu", [value("x", TensorProto.FLOAT, ["batch", 4, 8])],
        [value("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in arrays.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), file)


def test_shown(mlc_deploy: Command, golden: Golden) -> None:
    done = mlc_deploy("inspect", CNN, "--target", "aarch64")
    assert done.status == 0 and done.stderr == ""
    golden(done.stdout, "cli_inspect_digits")


def test_without_a_model_the_shipped_one_is_shown(mlc_deploy: Command, golden: Golden) -> None:
    done = mlc_deploy("inspect", "--target", "aarch64")
    assert done.status == 0 and done.stderr == ""
    golden(done.stdout, "cli_inspect_digits")


def test_shown_of_a_named_dimension(mlc_deploy: Command, golden: Golden, folder: Path) -> None:
    attention(folder / "gelu.onnx")
    done = mlc_deploy("inspect", "gelu.onnx", "--bind", "batch=2", "--target", "armv7a")
    assert done.status == 0 and done.stderr == ""
    golden(done.stdout, "cli_inspect_gelu")


def test_record(mlc_deploy: Command, folder: Path) -> None:
    done = mlc_deploy("inspect", CNN, "--target", "aarch64", "--json", "-")
    assert "multiply-accumulates" in done.stderr
    record = done.record
    assert record["model"] == "digits_cnn"
    assert record["operators"]["conv2d"] == {"model": 2, "kernels": 1}
    assert record["operators"]["winograd_conv2d"] == {"model": 0, "kernels": 1}
    assert record["operators"]["batch_norm"] == {"model": 1, "kernels": 0}
    assert record["multiply_accumulates"] == 147456 + 1179648 + 20480
    assert sum(k["multiply_accumulates"] for k in record["kernels"]) == 147456 + 1179648 + 20480
    assert record["arena_bytes"] >= record["arena_lower_bound_bytes"] > 0
    assert record["calls"] == len(record["kernels"])
    assert record["kernels"][0]["operators"] == ["conv2d", "add", "relu"]
    changed = [p["name"] for p in record["passes"] if p["changed"]]
    assert "simplify_inference" in changed and "fuse_operators" in changed
    again = mlc_deploy("inspect", CNN, "--target", "aarch64", "--json", "record.json")
    assert again.status == 0 and json.loads((folder / "record.json").read_text()) == record


def test_passes_that_changed_something_are_printed(mlc_deploy: Command, folder: Path) -> None:
    attention(folder / "gelu.onnx")
    done = mlc_deploy("inspect", "gelu.onnx", "--shape", "x=1,4,8", "--passes")
    begin = done.stdout.index("# after recognize_operators")
    graph = done.stdout[begin : done.stdout.index("# after", begin + 1)]
    assert "R.gelu(" in graph and "R.erf(" not in graph
    assert "# after simplify_inference" not in done.stdout


REFUSED: dict[str, list[str]] = {
    "no such file": ["inspect", "digitz.onnx"],
    "no such target": ["inspect", "digits.onnx", "--target", "armv9z"],
    "no model in the file": ["inspect", "notes.onnx"],
    "shape that is none": ["inspect", "digits.onnx", "--shape", "image"],
    "saved model": ["inspect", "digits.mlc"],
    "folder that is not there": ["inspect", "digits.onnx", "--json", "there/record.json"],
}


@pytest.fixture
def files(folder: Path) -> None:
    attention(folder / "gelu.onnx")
    (folder / "digits.onnx").write_bytes(CNN.read_bytes())
    (folder / "notes.onnx").write_text("this is not a model\n")
    digits().save(folder / "digits.mlc")


@pytest.mark.usefixtures("files")
def test_refused(mlc_deploy: Command, golden: Golden) -> None:
    texts = []
    for name, args in REFUSED.items():
        done = mlc_deploy(*args)
        assert done.stdout == ""
        texts.append(f"# {name}\n{done.complaint}\n")
    golden("\n".join(texts), "cli_inspect_refusals")


def test_in_float16(mlc_deploy: Command) -> None:
    cpu = "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76 -device=arm_cpu"
    options = ("inspect", CNN, "--target", cpu, "--json", "-")
    single, half = (mlc_deploy(*options, *more).record for more in ((), ("--precision", "float16")))
    assert (single["precision"], half["precision"]) == ("float32", "float16")
    assert {k["dtype"] for k in single["kernels"]} == {"float32"}
    assert half["kernels"][0]["dtype"] == "float16"
    assert half["weights_bytes"] < 0.7 * single["weights_bytes"]


def test_with_what_tuning_found(mlc_deploy: Command, folder: Path) -> None:
    """Of one kernel a schedule is known; of another, one that does not apply."""
    target = Target("aarch64")
    graphs = model_graph(CNN, target)
    kernels = lower_graph(graphs.optimized, graphs.module).kernels
    dense = next(name for name in kernels if name.startswith("dense"))
    pool = next(name for name in kernels if name.startswith("max_pool"))
    records = []
    for name in (dense, pool):
        sch = Schedule(unscheduled(kernels[name], target).func)
        workload = structural_hash(sch.func)
        if name == pool:
            sch.parallel(sch.get_loops(sch.get_blocks()[0])[0])
        steps = sch.trace.dumps().replace('"parallel"', '"no_primitive"')
        records.append(
            Record(
                name, workload, str(target), "a board", "instructions", "r",
                structural_hash(sch.func), pack(steps), Measured("ok", (), 1000),
            )
        )  # fmt: skip
    Database(folder / "t.jsonl").add(records)
    done = mlc_deploy("inspect", CNN, "--target", "aarch64", "--db", "t.jsonl", "--json", "-")
    assert {k["kernel"] for k in done.record["kernels"] if k["tuned"]} == {dense}
    assert "dense_tile, tuned" in done.stderr
    (note,) = done.record["notes"]
    assert note.startswith(f"{pool}: the tuned schedule does not apply") and note in done.stderr


def test_a_database_that_is_not_there_is_told(mlc_deploy: Command, folder: Path) -> None:
    assert mlc_deploy("inspect", CNN, "--db", "t.jsonl").complaint == (
        "error: there is no such tuning database\n"
        "  in:  t.jsonl\n"
        "  try: mlc-deploy tune MODEL --db t.jsonl, which makes it\n"
        "-> 1"
    )


def test_a_precision_that_is_none_is_told(mlc_deploy: Command) -> None:
    assert mlc_deploy("inspect", CNN, "--precision", "half").complaint == (
        "error: there is no such precision\n"
        "  in:  --precision half\n"
        "  try: float32 or float16 or int8\n"
        "-> 2"
    )
