"""The job as users run it: the digits on every kind of board, its options, its record."""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mlc_deploy as mlc
from mlc_rpc.cores import ranges
from tests.cli.command import MODELS, Command
from tests.onnx_models import one_node, reference

needs_qemu = pytest.mark.skipif(
    not shutil.which("qemu-arm"), reason="no QEMU here: apt install qemu-user"
)

NUMBER = (int, float)
NONE = type(None)
TENSOR = {"name": str, "shape": [int], "dtype": str}
CLASSES = dict.fromkeys(("mac", "vector", "load", "store", "branch", "scalar"), int)
SCHEMA: dict[str, Any] = {
    "record": int,
    "model": str,
    "target": str,
    "level": str,
    "precision": str,
    "board": {
        "url": str,
        "machine": str,
        "cpu_model": str,
        "cores": int,
        "features": [str],
        "kernel": str,
        "memory_bytes": int,
        "box": list,
        "emulated": bool,
    },
    "inputs": [TENSOR | {"source": str}],
    "outputs": [TENSOR | {"max_abs_err": NUMBER, "max_rel_err": NUMBER, "ok": bool}],
    "reference": str,
    "ok": bool,
    "predictions": {"output": str, "predicted": [int], "label": [int], "accuracy": float},
    "compile_s": float,
    "threads": int,
    "upload_s": float,
    "upload_bytes": int,
    "object_bytes": int,
    "weights_bytes": int,
    "arena_bytes": int,
    "states": dict,
    "memory": dict,
    "energy": (dict, NONE),
    "limits": {
        "macs_per_instruction": int,
        "macs_per_s": (float, NONE),
        "bytes_per_s": (float, NONE),
        "by_dtype": dict,
        "source": str,
    },
    "steps": [{"name": str, "begin_s": float, "seconds": float}],
    "latency": {
        "n": int,
        "median_ms": float,
        "p50_ms": float,
        "p90_ms": float,
        "p95_ms": float,
        "p99_ms": float,
        "mad_ms": float,
        "first_ms": float,
        "samples": [float],
        "number": [int],
        "outliers": list,
        "drift": float,
        "verdict": str,
        "findings": list,
        "cluster": str,
        "cores": list,
        "per_run": dict,
        "each": int,
        "conditions": (dict, NONE),
    },
    "instructions": (int, NONE),
    "predicted": (dict, NONE),
    "layers": [
        TENSOR
        | {"kernel": str, "median_us": float, "instructions": (int, NONE), "by_class": (dict, NONE)}
    ],
    "interruptions": list,
    "runtime_version": str,
}
UNKNOWN_WITHOUT_BOARD = {
    "board", "inputs", "outputs", "reference", "ok", "predictions", "threads", "upload_s",
    "upload_bytes", "latency", "instructions", "predicted", "interruptions", "runtime_version",
    "memory", "energy",
}  # fmt: skip


def check(value: Any, schema: Any, where: str = "record") -> None:
    match schema:
        case dict():
            assert isinstance(value, dict) and sorted(value) == sorted(schema), where
            for key, inner in schema.items():
                check(value[key], inner, f"{where}.{key}")
        case [inner]:
            assert isinstance(value, list) and value, where
            for number, item in enumerate(value):
                check(item, inner, f"{where}[{number}]")
        case _:
            assert isinstance(value, schema), f"{where} is {value!r}"


def expected_digits() -> list[int]:
    with np.load(MODELS / "digits.npz") as images:
        computed = reference(MODELS / "digits_cnn.onnx", {"image": images["image"]})
    digits: list[int] = computed["probability"].argmax(-1).tolist()
    return digits


@needs_qemu
@pytest.mark.parametrize(
    ("given", "machine"),
    [
        (["--target", "armv7a"], "arm"),
        (["--target", "aarch64"], "aarch64"),
        (["--board", "qemu://cortex-a7"], "arm"),
        (["--board", "qemu://"], "aarch64"),
        (["--target", "raspberry-pi/2b", "--board", "qemu://max"], "arm"),
    ],
)
def test_emulated_boards_classify_as_onnxruntime_does(
    given: list[str], machine: str, mlc_deploy: Command
) -> None:
    ended = mlc_deploy(*given, "--json", "-")
    assert ended.status == 0, ended.stderr
    record = ended.record
    foreseen = [layer.pop("predicted_ms", None) for layer in record["layers"]]
    check(record, SCHEMA)
    if record["predicted"]:
        assert math.fsum(foreseen) == record["predicted"]["ms"]
    assert bool(record["predicted"]) == ("raspberry-pi/2b" in given)
    assert record["board"]["machine"] == machine and record["board"]["emulated"]
    with np.load(MODELS / "digits.npz") as images:
        label = images["label"].tolist()
    predictions = record["predictions"]
    assert predictions["predicted"] == expected_digits() and predictions["label"] == label
    assert predictions["accuracy"] == np.mean(np.equal(expected_digits(), label))
    assert record["latency"]["verdict"] == "emulated" and record["latency"]["n"] == 1
    assert record["threads"] == 1
    assert record["instructions"] == sum(layer["instructions"] for layer in record["layers"])
    for layer in record["layers"]:
        check(layer["by_class"], CLASSES)
        assert layer["instructions"] == sum(layer["by_class"].values())


def test_this_machine_is_timed(mlc_deploy: Command) -> None:
    record = mlc_deploy("--json", "-").record
    check(record, SCHEMA)
    assert record["board"]["url"] == "local://" and not record["board"]["emulated"]
    assert record["predictions"]["predicted"] == expected_digits()
    latency = record["latency"]
    assert latency["verdict"] in ("ok", "noisy", "throttled", "migrated")
    assert bool(latency["findings"]) == (latency["verdict"] != "ok")
    assert latency["cores"] == sorted(os.sched_getaffinity(0))
    assert len(latency["conditions"]["after"]["cpu_us"]) == latency["n"] == len(latency["number"])
    assert record["threads"] == len(os.sched_getaffinity(0))  # unless some are slower
    assert record["latency"]["n"] == len(record["latency"]["samples"]) >= 3
    assert record["instructions"] is None
    assert all(layer["median_us"] > 0 for layer in record["layers"])


def test_the_core_that_is_named(mlc_deploy: Command) -> None:
    core = max(os.sched_getaffinity(0))
    record = mlc_deploy("--board", "local://", "--cores", str(core), "--json", "-").record
    assert record["latency"]["cores"] == [core] and record["threads"] == 1
    ended = mlc_deploy("--board", "local://", "--cores", "1000-1001")
    assert ended.status == 1
    allowed = ranges(sorted(os.sched_getaffinity(0)))
    assert ended.complaint == (
        "error: core 1000 is not here, or not for this program to use\n"
        f"  on:  local://\n  try: of {allowed}\n-> 1"
    )
    assert "upload" not in ended.stderr and "compile" not in ended.stderr


def test_none_compiles_only(mlc_deploy: Command) -> None:
    ended = mlc_deploy("--board", "none", "--target", "armv7a", "--json", "-")
    assert ended.status == 0
    assert {key for key, value in ended.record.items() if value is None} == UNKNOWN_WITHOUT_BOARD
    known = {key: kind for key, kind in SCHEMA.items() if key not in UNKNOWN_WITHOUT_BOARD}
    known["layers"] = [known["layers"][0] | {"median_us": NONE}]
    check({key: ended.record[key] for key in known}, known)
    assert "not run" in ended.stderr  # the table, since stdout is the record's


def stages(said: str) -> list[str]:
    """The names of stages on stderr, each once: on a busy machine, a slow one has several lines."""
    return list(dict.fromkeys(line.split()[0] for line in said.splitlines()))


def test_stdout_is_the_table_and_the_record_a_file(mlc_deploy: Command, folder: Path) -> None:
    ended = mlc_deploy("--board", "local://", "--json", "record.json")
    check(json.loads((folder / "record.json").read_text()), SCHEMA)
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("digits_cnn for ") and " on local://" in lines[0]
    assert " accuracy  16 of 16, 100.0%" in lines
    assert stages(ended.stderr) == [
        "read", "connect", "compile", "reference", "upload", "run", "timing",
    ]  # fmt: skip


@needs_qemu
def test_digits_by_name_of_their_file(mlc_deploy: Command) -> None:
    image = f"image={MODELS / 'digits.npz'}"
    ended = mlc_deploy(
        MODELS / "digits_mlp.onnx", "--target", "aarch64", "--input", image, "--json", "-"
    )
    assert ended.record["model"] == "digits_mlp"
    assert ended.record["predictions"]["accuracy"] == 1
    assert ended.record["inputs"][0]["source"] == "given"


def test_inputs_are_drawn_and_outputs_written(mlc_deploy: Command, folder: Path) -> None:
    model = MODELS / "digits_cnn.onnx"
    ended = mlc_deploy(model, "--board", "local://", "--output", "out", "--json", "-")
    assert ended.record["inputs"][0]["source"] == "seed 0"
    assert ended.record["predictions"] is None
    written = np.load(folder / "out" / "probability.npy")
    assert written.shape == (16, 10)
    np.testing.assert_allclose(written.sum(-1), 1, rtol=1e-5)


def test_expected_outputs_stand_for_the_reference(mlc_deploy: Command, folder: Path) -> None:
    x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
    onnx.save(one_node("Relu", {"x": x}), "relu.onnx")
    np.save("x.npy", x)
    np.savez("y.npz", anything=np.maximum(x, 0))
    ended = mlc_deploy(
        "relu.onnx", "--board", "local://", "--input", "x=x.npy", "--expect", "y=y.npz",
        "--json", "-",
    )  # fmt: skip
    assert ended.status == 0 and ended.record["reference"] == "given"
    assert ended.record["outputs"][0]["max_abs_err"] == 0


@pytest.mark.parametrize(
    ("suffix", "begin"), [(".o", b"\x7fELF"), (".s", b"\t"), (".ll", b";"), (".c", b"/*")]
)
def test_save(suffix: str, begin: bytes, mlc_deploy: Command, folder: Path) -> None:
    ended = mlc_deploy("--board", "none", "--target", "aarch64", "--save", f"model{suffix}")
    assert ended.status == 0, ended.stderr
    assert (folder / f"model{suffix}").read_bytes().startswith(begin)


def test_save_as_often_as_wanted(mlc_deploy: Command, folder: Path) -> None:
    files = folder / "a.mlc", folder / "b.o"
    saves = [word for file in files for word in ("--save", file)]
    assert mlc_deploy("--board", "none", *saves).status == 0
    assert all(file.stat().st_size > 1000 for file in files)


def test_a_group_of_commands_shows_its_help(mlc_deploy: Command) -> None:
    ended = mlc_deploy("board")
    assert ended.status == 2 and ended.stderr.startswith("Usage: mlc-deploy board")
    assert "doctor" in ended.stderr


@pytest.mark.parametrize(
    ("form", "holds"),
    [("llvm", "define"), ("asm", ".text"), ("c", "restrict"), ("ir", "conv2d"), ("obj", "\x7fELF")],
)
def test_emit_prints_that_and_nothing_else(form: str, holds: str, folder: Path) -> None:
    command = [sys.executable, "-m", "mlc_deploy.cli", "--target", "armv7a", "--emit", form]
    done = subprocess.run(command, capture_output=True, check=True)
    printed = done.stdout.decode("latin-1")
    assert holds in printed and "accuracy" not in printed
    assert stages(done.stderr.decode()) == ["read", "compile"]


@needs_qemu
def test_the_command_takes_less_than_five_seconds() -> None:
    """Of the processor, which no other process on this machine makes more."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "mlc_deploy.cli", "--target", "armv7a"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "accuracy  16 of 16" in done.stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 5


def test_digits_compile_in_less_than_two_seconds() -> None:
    began = time.process_time()
    mlc.compile(MODELS / "digits_cnn.onnx", "aarch64")
    assert time.process_time() - began < 2


def test_passes_are_told_on_request(mlc_deploy: Command) -> None:
    ended = mlc_deploy("--board", "none", "-v")
    assert "  fold_scale\n" in ended.stderr


def test_kernels_from_the_cache_are_told_on_request(
    mlc_deploy: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLC_CACHE_DIR", str(tmp_path / "cache"))
    told = [mlc_deploy("--board", "none", "-v").stderr.splitlines() for _ in range(2)]
    (first,), (second,) = ([w for w in words if w.endswith("cache")] for words in told)
    count = first.split()[0]
    assert first == f"  {count} kernels, 0 of them from the cache"
    assert second == f"  {count} kernels, {count} of them from the cache"


def test_help_shows_the_job(mlc_deploy: Command) -> None:
    ended = mlc_deploy("--help")
    assert ended.status == 0
    assert ended.stdout.startswith("Usage: mlc-deploy [MODEL] [OPTIONS]\n")
    assert mlc_deploy("--version").stdout.startswith("mlc-deploy 0.")


@needs_qemu
def test_a_saved_model_runs_as_it_is(mlc_deploy: Command, folder: Path) -> None:
    image = f"image={MODELS / 'digits.npz'}"
    saving = mlc_deploy("--target", "armv7a", "--board", "none", "--save", "digits.mlc")
    assert saving.status == 0
    ended = mlc_deploy("digits.mlc", "--input", image, "--output", "out", "--json", "-")
    assert ended.status == 0, ended.stderr
    record = ended.record
    assert record["model"] == "digits" and record["board"]["machine"] == "arm"
    assert record["reference"] is record["ok"] is record["compile_s"] is None
    assert record["outputs"][0]["ok"] is record["outputs"][0]["max_abs_err"] is None
    assert record["predictions"]["predicted"] == expected_digits()
    assert "output    probability 16x10: not compared (no reference)\n" in ended.stderr
    right = "probability=out/probability.npy"
    held = mlc_deploy("digits.mlc", "--input", image, "--expect", right, "--json", "-")
    assert held.status == 0 and held.record["ok"] is True and held.record["reference"] == "given"
    wrong = np.load("out/probability.npy")
    wrong[0] += 1
    np.save("wrong.npy", wrong)
    refused = mlc_deploy("digits.mlc", "--input", image, "--expect", "probability=wrong.npy")
    assert refused.status == 1 and "output 'probability' is wrong in 10 of 160" in refused.stderr


def test_a_folder_for_boards_without_a_laptop(mlc_deploy: Command, folder: Path) -> None:
    assert mlc_deploy("--target", "x86_64", "--board", "none", "--save", "board/").status == 0
    assert sorted(p.name for p in (folder / "board").iterdir()) == [
        "README", "digits_cnn.mlc", "mlc-runtime",
    ]  # fmt: skip
    with np.load(MODELS / "digits.npz") as images:
        np.save("board/image.npy", images["image"])
    command = (folder / "board" / "README").read_text().split()
    subprocess.run(command, cwd="board", check=True, capture_output=True)
    assert np.load("board/results/probability.npy").argmax(-1).tolist() == expected_digits()
    again = mlc_deploy("--target", "aarch64", "--board", "none", "--save", "board")  # is there now
    assert again.status == 0
    assert (folder / "board" / "mlc-runtime").read_bytes()[18] == 183  # ELF's number of AArch64


@pytest.mark.parametrize(
    ("form", "files"),
    [
        ("asm", ["digits_cnn.s"]),
        ("c", ["digits_cnn.c", "digits_cnn.h"]),
        ("ir", ["digits_cnn.txt"]),
        ("llvm", ["digits_cnn.ll"]),
        ("obj", ["digits_cnn.h", "digits_cnn.o", "digits_cnn.weights", "mlc_runtime.c",
                 "mlc_runtime.h"]),
    ],
)  # fmt: skip
def test_what_is_emitted_goes_to_a_folder(
    form: str, files: list[str], mlc_deploy: Command, folder: Path
) -> None:
    ended = mlc_deploy("--target", "aarch64", "--emit", form, "--output", "out")
    assert (ended.status, ended.stdout) == (0, "")
    assert sorted(p.name for p in (folder / "out").iterdir()) == files


def test_an_input_settles_a_dynamic_shape(mlc_deploy: Command, folder: Path) -> None:
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 3])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 3])
    relu = onnx.helper.make_node("Relu", ["x"], ["y"])
    onnx.save(
        onnx.helper.make_model(onnx.helper.make_graph([relu], "dynamic", [x], [y])), "dynamic.onnx"
    )
    np.save("x.npy", np.array([[1, -2, 3], [-4, 5, -6]], np.float32))
    ended = mlc_deploy("dynamic.onnx", "--board", "local://", "--input", "x=x.npy", "--json", "-")
    assert ended.status == 0 and ended.record["outputs"][0]["shape"] == [2, 3]
