"""`mlc-deploy quantize` and `--precision int8`: what they write, say and refuse."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import mlc_deploy as mlc
from tests.cli.command import MODELS, Command
from tests.quantize.nets import conv, model, pictures, residual, weights

Golden = Callable[..., None]
CNN = MODELS / "digits_cnn.onnx"
OUT = ("-o", "out.onnx")
A76 = "aarch64 -mcpu=cortex-a76"
INT8 = ("net.onnx", "--data", "good.npy", "--precision", "int8", "--board", "local://")

needs_qemu = pytest.mark.skipif(
    not shutil.which("qemu-arm"), reason="no QEMU here: apt install qemu-user"
)


OWN = """
def twice(node):
    return node.emit("add", node.input(0), node.input(0))

import mlc_deploy as mlc
mlc.register_func("once.only")(print)  # which a second run of the file would refuse
CONVERTERS = {"my.domain::Twice": twice}
"""


def then(node: onnx.NodeProto, inputs: tuple[str, ...]) -> onnx.ModelProto:
    """The residual net, whose result z goes through a node, which reads more inputs."""
    made = residual()
    made.graph.node[-1].output[0] = "z"
    made.graph.node.append(node)
    made.opset_import.append(helper.make_opsetid("my.domain", 1))
    for name in inputs:
        made.graph.input.append(helper.make_tensor_value_info(name, 1, [1, 10]))
    return made


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    onnx.save(residual(), "net.onnx")
    onnx.save(model([helper.make_node("Relu", ["x"], ["y"], "r")], {}, (1, 3)), "relu.onnx")
    after = {
        "custom": (helper.make_node("Twice", ["z"], ["y"], "twice", domain="my.domain"), ()),
        "gain": (helper.make_node("Mul", ["z", "gain"], ["y"], "mul"), ("gain",)),
        "kept": (helper.make_node("Add", ["z", "before"], ["y"], "add"), ("before",)),
    }
    for name, (node, inputs) in after.items():
        onnx.save(then(node, inputs), f"{name}.onnx")
    Path("own.py").write_text(OWN)
    narrow = residual()
    narrow.graph.initializer.append(helper.make_tensor("b", onnx.TensorProto.BFLOAT16, [1], [1.0]))
    onnx.save(narrow, "bfloat16.onnx")
    product = [helper.make_node("MatMul", ["x", "w"], ["y"], "product")]
    onnx.save(model(product, {"w": np.ones((3, 2), np.float32)}, (1, 3)), "rows.onnx")
    conv_alone = [conv("c", "x", "y")]
    onnx.save(model(conv_alone, weights("c", 4, 3, 3, 3), (1, 3, 8, 8)), "conv.onnx")
    wide = model(conv_alone, weights("c", 4, 3, 3, 3), (1, 3, 8, 8))
    for axis in (2, 3):
        wide.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"size{axis}"
    onnx.save(wide, "open.onnx")
    pair = [
        helper.make_node(f"{kind}Linear", [of, "scale"], [to], kind)
        for kind, of, to in (("Quantize", "x", "q"), ("Dequantize", "q", "y"))
    ]
    onnx.save(model(pair, {"scale": np.asarray(0.1, np.float32)}, (1, 3)), "int8.onnx")
    for name in ("tflite.onnx", "net.tflite"):
        Path(name).write_bytes(bytes(4) + b"TFL3")
    x = pictures(4)
    np.save("good.npy", x)
    Path("photos").mkdir()
    pixels = np.zeros((30, 40, 3), np.uint8)
    pytest.importorskip("PIL.Image").fromarray(pixels).save("photos/a.png")
    np.save("small.npy", x[:, :, :5])
    np.save("tiny.npy", x[:, :, :1, :1])
    np.save("bytes.npy", x.astype(np.uint8))
    np.savez("other.npz", a=x, b=x)
    nan = x.copy()
    nan[2, 0, 0, 0] = np.nan
    np.save("nan.npy", nan)
    np.save("labels.npy", np.zeros(3, np.int64))
    np.save("floats.npy", np.zeros(4))
    Path("empty").mkdir()
    Path("text.npy").write_text("these are not numbers\n")
    for name in ("pictures", "mixed"):
        Path(name).mkdir()
        Path(name, "a.png").write_bytes(b"no picture")
    np.save("mixed/b.npy", x)
    Path("calib.py").write_text(
        "def runs():\n    yield 1 / 0\n\ndef shapes():\n    yield [[1.0]]\n\nnumber = 3\n"
    )


REFUSED: dict[str, list[tuple[str, ...]]] = {
    "data": [
        ("net.onnx",),
        ("net.onnx", "--data", "gone"),
        ("net.onnx", "--data", "empty"),
        ("net.onnx", "--data", "small.npy"),
        ("open.onnx", "--data", "tiny.npy"),
        ("net.onnx", "--data", "bytes.npy"),
        ("net.onnx", "--data", "other.npz"),
        ("net.onnx", "--data", "nan.npy"),
        ("net.onnx", "--data", "text.npy"),
        ("net.onnx", "--data", "net.onnx"),
        ("net.onnx", "--data", "pictures"),
        ("net.onnx", "--data", "mixed"),
        ("rows.onnx", "--data", "pictures"),
        ("net.onnx", "--data", "good.npy", "--preprocess", "resize=16x16"),
        ("net.onnx", "--data", "photos", "--preprocess", "resize=8x9"),
        ("net.onnx", "--data", "photos", "--preprocess", "mean=0.5,0.5"),
        ("net.onnx", "--data", "pictures", "--preprocess", "resize=20,30"),
        ("net.onnx", "--data", "pictures", "--preprocess", "size=20"),
        ("net.onnx", "--data", "pictures", "--preprocess", "resize=16x16"),
        ("net.onnx", "--data", "calib.py:runs"),
        ("net.onnx", "--data", "calib.py:shapes"),
        ("net.onnx", "--data", "calib.py:number"),
        ("net.onnx", "--data", "gone.py:runs"),
    ],
    "options": [
        ("net.onnx", "--data", "good.npy", "--labels", "labels.npy"),
        ("net.onnx", "--data", "good.npy", "--labels", "floats.npy"),
        ("net.onnx", "--data", "good.npy", "--labels", "other.npz"),
        ("net.onnx", "--data", "good.npy", "--labels", "gone.npy"),
        ("net.onnx", "--data", "good.npy", "--max-drop", "-1"),
        ("net.onnx", "--data", "good.npy", "--samples", "0"),
        ("net.onnx", "--data", "good.npy", "--scheme", "magic"),
        ("net.onnx", "--data", "good.npy", "--target", "armv9"),
        ("net.onnx", "--data", "good.npy", "--shape", "x"),
        ("net.onnx", "--data", "good.npy", "--shape", "image=1,3,16,16"),
        ("open.onnx", "--data", "good.npy", "--bind", "width=16"),
    ],
    "model": [
        ("gone.onnx", "--data", "good.npy"),
        ("good.npy", "--data", "good.npy"),
        ("relu.onnx", "--data", "good.npy"),
        ("conv.onnx", "--scheme", "dynamic"),
        ("bfloat16.onnx", "--data", "good.npy"),
        ("int8.onnx", "--data", "good.npy"),
        ("net.tflite", "--data", "good.npy"),
        ("tflite.onnx", "--data", "good.npy"),
        ("net.onnx", "--scheme", "dynamic", "--labels", "labels.npy"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("subject", REFUSED)
def test_quantize_refusals(subject: str, mlc_deploy: Command, golden: Golden) -> None:
    texts = []
    for args in REFUSED[subject]:
        ended = mlc_deploy("quantize", *args, *OUT)
        assert ended.status != 0 and not Path("out.onnx").exists()
        texts.append(f"$ mlc-deploy quantize {' '.join(args)}\n{ended.complaint}")
    golden("\n\n".join(texts))


def test_quantize_refusals_output(mlc_deploy: Command, golden: Golden) -> None:
    given = ("net.onnx", "--data", "good.npy")
    texts = []
    before = Path("net.onnx").read_bytes()
    for output in ("net.onnx", "good.npy", "empty", "gone/out.onnx", "out.tflite"):
        ended = mlc_deploy("quantize", *given, "-o", output)
        texts.append(f"$ mlc-deploy quantize {' '.join(given)} -o {output}\n{ended.complaint}")
    assert Path("net.onnx").read_bytes() == before
    golden("\n\n".join(texts))


def test_quantize_refusals_precision(mlc_deploy: Command, golden: Golden) -> None:
    texts = []
    for args in (
        (CNN.name, "--precision", "int8"),
        ("--data", "good.npy"),
        ("inspect", CNN.name, "--precision", "int8"),
        (CNN.name, "--precision", "int9"),
        (*INT8, "--const", "gian=2"),
        (*INT8, "--const", "x=1,2"),
        (*INT8, "--state", "h=y"),
        (*INT8, "--link", "gone.c"),
        ("custom.onnx", *INT8[1:]),
        ("custom.onnx", *INT8[1:], "--converters", "gone.py"),
    ):
        shutil.copy(CNN, CNN.name)
        texts.append(f"$ mlc-deploy {' '.join(args)}\n{mlc_deploy(*args).complaint}")
    golden("\n\n".join(texts))


def test_a_budget_that_cannot_be_kept_names_the_layers() -> None:
    """Outputs that differ by less than a step of any integer."""
    rng = np.random.default_rng(0)
    w = rng.normal(size=(64, 6)).astype(np.float32)
    w[:, 1:] = w[:, :1] + rng.normal(0, 1e-4, (64, 5))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "product"),
        helper.make_node("Softmax", ["a"], ["y"], "rows"),
    ]
    x = rng.normal(size=(64, 1, 64)).astype(np.float32)
    with pytest.raises(mlc.QuantizeError) as refused:
        mlc.quantize(model(nodes, {"w": w}, (1, 64)), {"x": x})
    assert str(refused.value) == (
        "no layer becomes int8; int8 loses more than 0.5 %, most by 'product'\n"
        "  try: the float model as it is, a larger --max-drop, or more calibration data"
    )


def test_the_table(mlc_deploy: Command, golden: Golden) -> None:
    ended = mlc_deploy("quantize", "-o", "digits.onnx")
    assert ended.status == 0, ended.complaint
    golden(ended.stdout)


def test_the_record(mlc_deploy: Command) -> None:
    ended = mlc_deploy("quantize", "net.onnx", "--data", "good.npy", *OUT, "--json", "-",
                       "--max-drop", "2")  # fmt: skip
    record = ended.record
    assert (record["scheme"], record["runs"], record["before"]) == ("static", 4, 100)
    assert record["bytes_after"] == Path("out.onnx").stat().st_size < record["bytes_before"]
    assert [layer["name"] for layer in record["layers"]] == ["stem", "first", "second", "head"]
    assert all(0 < layer["error"] < 0.1 for layer in record["layers"])


def test_weights_in_a_file_of_their_own_count(mlc_deploy: Command, golden: Golden) -> None:
    given = onnx.load("net.onnx")
    onnx.save(given, "own.onnx", save_as_external_data=True, location="own.data", size_threshold=0)
    ended = mlc_deploy("quantize", "own.onnx", "--scheme", "int4-weights", *OUT, "--json", "-")
    assert ended.status == 0, ended.complaint
    sizes = [Path(name).stat().st_size for name in ("own.onnx", "own.data")]
    assert ended.record["bytes_before"] == sum(sizes)
    assert " error " not in ended.stdout + ended.stderr  # which is known of calibrated layers alone


@needs_qemu
def test_no_more_instructions_than_before(mlc_deploy: Command) -> None:
    ended = mlc_deploy("quantize", "net.onnx", "--data", "good.npy", *OUT, "--json", "-",
                       "--max-drop", "2", "--target", "aarch64 -mcpu=cortex-a76")  # fmt: skip
    assert ended.status == 0, ended.complaint
    record = ended.record
    counts = [
        mlc_deploy(name, "--board", "qemu://cortex-a76", "--json", "-", "--target",
                   "aarch64 -mcpu=cortex-a76").record["instructions"]
        for name in ("net.onnx", "out.onnx")
    ]  # fmt: skip
    assert counts == [record["instructions_before"], record["instructions_after"]]
    assert counts[1] < counts[0]


def test_int8_by_the_main_command(mlc_deploy: Command) -> None:
    ended = mlc_deploy("--precision", "int8", "--board", "local://", "--json", "-")
    assert ended.status == 0, ended.complaint
    record = ended.record
    assert record["ok"] and record["predictions"]["accuracy"] == 1
    assert [layer["bits"] for layer in record["quantized"]["layers"]] == [8, 8, 8]
    assert {"int8", "uint8"} & {layer["dtype"] for layer in record["layers"]}


@pytest.mark.parametrize(
    "options",
    [
        ("gain.onnx", "--const", "gain=2"),
        ("kept.onnx", "--state", "before=y"),
        ("custom.onnx", "--converters", "own.py"),
    ],
    ids=lambda options: options[0],
)
def test_int8_with_what_models_are_read_by(options: tuple[str, ...], mlc_deploy: Command) -> None:
    x = pictures(4)
    np.savez("both.npz", x=x[:, None], before=np.ones((4, 1, 10), np.float32))
    data = "both.npz" if "--state" in options else "good.npy"
    ended = mlc_deploy(*options, "--precision", "int8", "--data", data, "--board", "local://",
                       "--json", "-")  # fmt: skip
    assert ended.status == 0, ended.complaint
    record = ended.record
    assert record["ok"]
    assert [layer["bits"] for layer in record["quantized"]["layers"]] == [8, 8, 8, 8]


def test_linked_code_is_there_when_costs_are_counted(
    mlc_deploy: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked = []
    compile_ = mlc.compile

    def spied(*args: Any, link: Sequence[str] = (), **options: Any) -> mlc.CompiledModel:
        linked.append(tuple(link))
        return compile_(*args, link=link, **options)

    for module in ("mlc_deploy.quantize.costs", "mlc_deploy.driver.levels"):
        monkeypatch.setattr(importlib.import_module(module), "compile", spied)
    Path("own.c").write_text("void own(void) {}\n")
    ended = mlc_deploy(*INT8[:-1], "none", "--link", "own.c", "--target", A76)
    assert ended.status == 0, ended.complaint
    assert len(linked) > 2 and set(linked) == {("own.c",)}


@needs_qemu
def test_float32_where_int8_costs_more(mlc_deploy: Command) -> None:
    ended = mlc_deploy("--precision", "int8", "--target", "armv7a", "--json", "-")
    assert ended.complaint.startswith(
        "warning: int8 costs more than float32 on armv7a, so the model runs in float32\n"
    )
    record = ended.record
    assert record["ok"] and record["predictions"]["accuracy"] == 1
    assert "quantized" not in record
    assert not any("int8" in layer["dtype"] for layer in record["layers"])


@needs_qemu
def test_costs_alone_are_no_reason_to_write_a_file(mlc_deploy: Command) -> None:
    ended = mlc_deploy("quantize", "--target", "armv7a", *OUT)
    assert ended.complaint == (
        "error: no layer becomes int8; int8 costs more on armv7a than float32: 'conv_0', "
        "'conv_4', 'gemm_8'\n  try: the float model as it is\n-> 1"
    )
    assert not Path("out.onnx").exists()
