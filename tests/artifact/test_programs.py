"""Models with loops and branches away from their compiler: saved, exported, run on the board."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.graph import Function, evaluate
from mlc_rpc import errors
from tests.artifact.test_export import classified, compiled, gcc
from tests.graph.test_control import MODELS, inputs_of
from tests.runtime.test_run_command import run, said_of_box
from tests.zig import static_cc

TARGETS = {"x86_64": "host", "aarch64": "aarch64", "arm": "armv7a"}
DRIVER = """
#include "looped.h"
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    void *in[8], *out[8], *weights;
    void *memory = mlc_memory_new(LOOPED_MEMORY_BYTES);
    FILE *file = fopen(argv[1], "rb");
    int32_t status = mlc_weights_read(&looped, "looped.weights", &weights);
    for (uint32_t i = 0; i < looped.input_count; i++) {
        in[i] = mlc_memory_new(looped.inputs[i].bytes);
        if (fread(in[i], 1, looped.inputs[i].bytes, file) != looped.inputs[i].bytes) return 2;
    }
    fclose(file);
    for (uint32_t i = 0; i < looped.output_count; i++)
        out[i] = mlc_memory_new(looped.outputs[i].bytes);
    for (int again = 0; again < 2 && status == MLC_OK; again++)
        status = mlc_model_run(&looped, weights, memory, in, out);
    file = fopen("outputs", "wb");
    for (uint32_t i = 0; i < looped.output_count; i++)
        fwrite(out[i], 1, looped.outputs[i].bytes, file);
    fclose(file);
    printf("%s", mlc_status_text(status));
    return argc != 2 || status != MLC_OK;
}
"""


def exported(name: str, machine: str, to: Path) -> Function:
    function = MODELS[name]()
    mlc.compile(function, TARGETS[machine]).export(to, "looped")
    (to / "main.c").write_text(DRIVER)
    given = inputs_of(function)
    (to / "images.f32").write_bytes(b"".join(given[p.name].tobytes() for p in function.params))
    return function


def check_outputs(function: Function, content: bytes) -> None:
    for name, value in evaluate(function, inputs_of(function)).items():
        found, content = content[: value.nbytes], content[value.nbytes :]
        array = np.frombuffer(found, value.dtype).reshape(value.shape)
        np.testing.assert_allclose(array, value, 1e-5, 1e-6, err_msg=name)
    assert content == b""


@pytest.mark.parametrize("name", MODELS)
def test_exported(name: str, tmp_path: Path) -> None:
    function = exported(name, "x86_64", tmp_path)
    made = compiled(gcc(), tmp_path, "main.c", "mlc_runtime.c", "looped.o")
    assert classified(made) == "all is well"
    check_outputs(function, (tmp_path / "outputs").read_bytes())


@pytest.mark.parametrize("machine", ["aarch64", "arm"])
def test_exported_for_boards(machine: str, tmp_path: Path) -> None:
    function = exported("choosing", machine, tmp_path)
    made = compiled(static_cc(machine), tmp_path, "main.c", "mlc_runtime.c", "looped.o")
    assert classified(made, machine) == "all is well"
    check_outputs(function, (tmp_path / "outputs").read_bytes())


@pytest.mark.parametrize("machine", TARGETS)
@pytest.mark.parametrize("name", ["choosing", "counting"])
def test_run_on_the_board(name: str, machine: str, tmp_path: Path) -> None:
    function = MODELS[name]()
    mlc.compile(function, TARGETS[machine]).save(tmp_path / "looped.mlc")
    given = inputs_of(function)
    options: list[str] = []
    for key, value in given.items():
        np.save(tmp_path / f"{key}.npy", value)
        options += ["--input", f"{key}={key}.npy"]
    ended = run("looped.mlc", *options, "--output", "results", at=tmp_path, machine=machine)
    assert (ended.returncode, ended.stderr) == (0, said_of_box(machine))
    for key, value in evaluate(function, given).items():
        found = np.load(tmp_path / "results" / f"{key}.npy")
        np.testing.assert_allclose(found, value, 1e-5, 1e-6)
        assert found.dtype == value.dtype


def test_a_loop_that_never_ends_meets_its_deadline() -> None:
    """The worker ends, and the session goes on."""
    bb = mlc.graph.BlockBuilder("main")
    x = bb.param("x", (1,))

    def step(turn: object, states: list[mlc.graph.Value], _: object) -> Any:
        return [states[0], bb.emit("negative", states[1])], []

    truth = mlc.graph.const(True)
    ends, _ = bb.emit_loop((1 << 31) - 1, [truth, x], step, conditional=True)
    model = mlc.compile(bb.finish(ends[1:], ["y"]), "host")
    with mlc.connect("local://") as board:
        module = board.load(model)
        with pytest.raises(errors.Timeout) as caught:
            module.run({"x": np.ones(1, np.float32)}, timeout=0.5)
        assert "negative" in str(caught.value)
        assert board.ping() >= 0
