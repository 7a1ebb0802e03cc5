"""What a user did wrong: the whole message and the exit status, and never a traceback."""

from __future__ import annotations

import errno
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import mlc_deploy as mlc
from mlc_deploy.cli.errors import complain, exit_status, message
from mlc_rpc import RpcError
from tests.artifact.models import digits
from tests.cli.command import MODELS, Command
from tests.onnx_models import one_node
from tests.runtime.board import model_of, module_of

Golden = Callable[..., None]
CNN = MODELS / "digits_cnn.onnx"

needs_qemu = pytest.mark.skipif(
    not shutil.which("qemu-arm"), reason="no QEMU here: apt install qemu-user"
)


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    """Files with something wrong about each, and arrays for the digits."""
    (folder / "notes.onnx").write_text("this is not a model\n")
    (folder / "cut.onnx").write_bytes(CNN.read_bytes()[:3000])
    (folder / "notes.mlc").write_text("this is not a model\n")
    saved = digits().save(folder / "digits.mlc").read_bytes()
    (folder / "damaged.mlc").write_bytes(saved[:-1] + b"!")
    (folder / "digits.onnx").write_bytes(CNN.read_bytes())
    x = np.ones((1, 3), np.float32)
    onnx.save(one_node("Relu", {"x": x}), "relu.onnx")
    missing = [
        helper.make_node(op, ["x"], [f"y{n}"], name=f"node{n}")
        for n, op in enumerate(("Multinomial", "NonZero", "Multinomial"))
    ]
    save_graph("missing.onnx", missing, [1, 3])
    save_graph("images.onnx", [helper.make_node("Relu", ["x"], ["y0"])], ["batch", 3, "h", "w"])
    save_graph("dynamic.onnx", [helper.make_node("Relu", ["x"], ["y0"])], ["batch", 3])
    np.save("short.npy", np.zeros((3, 1, 8, 8), np.float32))
    np.save("bytes.npy", np.zeros((16, 1, 8, 8), np.uint8))
    np.save("x.npy", np.array([[1, 2, 3]], np.float32))
    np.save("y.npy", np.array([[1, 2.5, 3]], np.float32))
    np.savez("two.npz", a=x, b=x)


def save_graph(file: str, nodes: list[onnx.NodeProto], shape: list[int | str]) -> None:
    value = helper.make_tensor_value_info
    outputs = [value(n.output[0], TensorProto.UNDEFINED, None) for n in nodes]
    graph = helper.make_graph(nodes, "graph", [value("x", TensorProto.FLOAT, shape)], outputs)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), file)


CASES: dict[str, list[list[str]]] = {
    "model": [
        ["digts"],
        ["digit.onnx"],
        ["elsewhere/model.onnx"],
        ["notes.onnx"],
        ["cut.onnx"],
        ["missing.onnx"],
        ["images.onnx"],
        ["dynamic.onnx", "--bind", "batch<=4", "--shape", "x=2,3"],
        ["."],
    ],
    "saved": [
        ["damaged.mlc"],
        ["notes.mlc"],
        ["digits.mlc", "--target", "armv7a"],
        ["digits.mlc", "--shape", "image=1,1,8,8"],
        ["digits.mlc", "--save", "again.mlc"],
        ["digits.mlc", "--emit", "asm"],
        ["digits.mlc", "--board", "local://", "--input", "image=short.npy"],
        ["digit.mlc"],
        ["--save", "notes.mlc/"],
    ],
    "target": [
        ["--target", "armv9"],
        ["--target", "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72x"],
        ["--target", "llvm -mtriple=aarch64-linux-gnu -mattr=+dotprot"],
        ["--target", "llvm -mtriple=aarch64-linux-gnu -mattr=+faminmax"],
    ],
    "board": [
        ["--board", "pi"],
        ["--board", "raspberry-pi/4b"],
        ["--board", "telnet://somewhere:9000"],
        ["--board", "ssh://-x"],
        ["--board", "local://here"],
    ],
    "options": [
        ["--colour"],
        ["digits.onnx", "relu.onnx"],
        ["--input", "image"],
        ["--input", "image=there.npy"],
        ["--input", "image=notes.onnx"],
        ["--input", "image=two.npz"],
        ["--input", "image=short.npy", "--input", "image=short.npy"],
        ["--shape", "image=1,x"],
        ["--bind", "n=many"],
        ["--bind", "n<=0"],
        ["--bind", "n<=99999999999"],
        ["--bind", "n=1,<=99999999999"],
        ["--json", "there/record.json"],
        ["--save", "model.tflite"],
        ["--save", "model"],
        ["--threads", "0"],
        ["--cores", "big"],
        ["--cores", "3-0"],
        ["--timeout", "0"],
        ["--timeout", "soon"],
        ["--emit", "rust"],
        ["--emit", "asm", "--json", "record.json"],
        ["--board", "none", "--output", "results"],
        ["--board", "local://", "--output", "notes.onnx"],
        ["--board", "none", "--json", "/dev/full"],
        ["--board", "none", "--expect", "probability=short.npy"],
        ["board", "frob"],
        ["board", "lists"],
        ["farm", "list", "--jsn", "x"],
    ],
    "arrays": [
        ["--board", "local://", "--input", "image=short.npy"],
        ["--board", "local://", "--input", "image=bytes.npy"],
        ["--board", "local://", "--input", "imago=short.npy"],
        ["--board", "local://", "--expect", "probability=short.npy"],
        ["relu.onnx", "--board", "local://", "--input", "x=x.npy", "--expect", "y=y.npy"],
    ],
}


@pytest.mark.parametrize("kind", CASES)
def test_refusals(kind: str, mlc_deploy: Command, golden: Golden) -> None:
    told = [f"$ mlc-deploy {' '.join(args)}\n{mlc_deploy(*args).complaint}" for args in CASES[kind]]
    golden("\n\n".join(told).replace(str(MODELS), "MODELS"), f"cli_refusals_{kind}")


def test_what_the_system_refuses_is_told_with_what_mends_it() -> None:
    refused = PermissionError(errno.EACCES, "Permission denied", "results")
    assert message(refused) == (
        "permission denied\n  in:  results\n  try: another place, or other permissions there"
    )
    assert message(OSError(errno.EIO, "Input/output error")) == "input/output error"


@pytest.mark.parametrize(("no_color", "shown"), [("", "\x1b[31m"), ("1", "error: no\n")])
def test_colours_are_for_terminals_of_those_who_want_them(
    no_color: str, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    complain("no")
    assert capsys.readouterr().err.startswith(shown)


def test_an_array_leaves_open_what_bind_leaves_open(mlc_deploy: Command) -> None:
    model = ("dynamic.onnx", "--bind", "batch<=4", "--board", "local://")
    ended = mlc_deploy(*model, "--input", "x=x.npy", "--json", "-")
    assert ended.status == 0, ended.stderr
    assert ended.record["outputs"][0]["shape"] == [1, 3]
    np.save("five.npy", np.zeros((5, 3), np.float32))
    assert mlc_deploy(*model, "--input", "x=five.npy").complaint == (
        "error: input 'x' is float32[batch, 3] with batch <= 4, and the array given is "
        "float32[5, 3]\n"
        '  try: at most 4 for batch, or compile with --bind "batch<=5"\n'
        "-> 2"
    )


def test_what_is_given_is_checked_before_a_board_is_asked(mlc_deploy: Command) -> None:
    nobody = ("--board", "tcp://127.0.0.1:1")
    for option in ("--input", "--expect"):
        ended = mlc_deploy(*nobody, option, "imago=short.npy")
        assert ended.status == 2 and "imago" in ended.complaint


@needs_qemu
def test_boards_that_cannot_run_the_target(mlc_deploy: Command, golden: Golden) -> None:
    cases = [
        ["--target", "aarch64", "--board", "qemu://cortex-a7"],
        ["--target", "armv7a", "--board", "qemu://cortex-a72"],
        ["--target", "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76", "--board",
         "qemu://cortex-a72"],
        ["--target", "x86_64", "--board", "qemu://"],
    ]  # fmt: skip
    told = [f"$ mlc-deploy {' '.join(args)}\n{mlc_deploy(*args).complaint}" for args in cases]
    golden("\n\n".join(told))


def test_qemu_is_not_installed(
    mlc_deploy: Command, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    golden(mlc_deploy("--target", "armv7a").complaint)


def test_board_is_unreachable(mlc_deploy: Command, golden: Golden, folder: Path) -> None:
    with socket.socket() as probe:  # bound and not listening: nobody answers there
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
        told = mlc_deploy("--board", f"ssh://me@127.0.0.1:{port}").complaint
    golden(told.replace(port, "PORT"))


def test_kernels_that_go_wrong(golden: Golden) -> None:
    told = []
    for kernel in ("wild", "spin"):
        described = model_of(bytes(256))
        described["calls"][2] = [2, "features.3", [[0, 0, 0, 64]]]
        with mlc.connect("local://") as board:
            machine = board.device.machine
            names = ("add64", "double64", kernel)
            module = board.load(
                module_of(*names, machine=machine, says={"model": described}), bytes(256)
            )
            with pytest.raises(RpcError) as caught:
                module.run({"x": np.ones((1, 64), np.float32)}, timeout=0.3)
        told.append(f"{message(caught.value)}\n-> {exit_status(caught.value)}")
    golden("\n\n".join(told))


def test_a_mistake_of_ours_says_so(
    mlc_deploy: Command, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr("mlc_deploy.cli.run.compiled", lambda *_, **__: [][0])
    golden(mlc_deploy("--board", "none").complaint)
    assert "Traceback" in mlc_deploy("--board", "none", "--debug").stderr


@pytest.mark.parametrize("group", ["board", "farm"])
def test_group_without_a_command_shows_its_help(group: str, mlc_deploy: Command) -> None:
    """As bad usage, whatever click does by itself: that depends on its version."""
    run = mlc_deploy(group)
    assert run.status == 2 and not run.stdout
    assert run.stderr.startswith(f"Usage: mlc-deploy {group} [OPTIONS] COMMAND [ARGS]...\n")
