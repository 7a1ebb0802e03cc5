"""Files of torch.export as they are read before torch sees them; nothing here needs torch."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from mlc_deploy.errors import ImporterError
from mlc_deploy.frontend.pt2 import data_of, expression, is_operator
from tests.frontend import pt2_files as pt2

MARKER = Path("/nowhere/marker")


def refusal(file: Path) -> str:
    with pytest.raises(ImporterError) as error:
        data_of(file)
    return str(error.value)


def test_a_program_is_kept_without_what_is_not_needed(tmp_path: Path) -> None:
    def more(program: Any) -> None:
        program["guards_code"] = [pt2.code(MARKER)]
        stack = {"nn_module_stack": "L__self__,,m.M", "stack_trace": "os.abort()"}
        pt2.graph(program)["nodes"][0]["metadata"] = stack

    content = pt2.edited(pt2.relu(), pt2.MODEL, more)
    content |= {"extra/notes": b"x", "executorch/x": b"y", "models/second.json": b"{"}
    archive = data_of(pt2.write(tmp_path / "m.pt2", content))
    assert not archive.pickles
    with zipfile.ZipFile(archive.packed()) as packed:
        names = {name.removeprefix("archive/") for name in packed.namelist()}
        program = json.loads(packed.read("archive/" + pt2.MODEL))
    assert names == set(pt2.relu())
    assert program["guards_code"] == []
    (node,) = pt2.graph(program)["nodes"]
    assert node["metadata"] == {"nn_module_stack": "L__self__,,m.M"}


@pytest.mark.parametrize("name", pt2.hostile(MARKER))
def test_what_could_run_is_refused(tmp_path: Path, name: str) -> None:
    content, said = pt2.hostile(MARKER)[name]
    text = refusal(pt2.write(tmp_path / "m.pt2", content))
    assert said in text.splitlines()[0]
    assert text.splitlines()[1].startswith(f"  in:  {tmp_path / 'm.pt2'}, entry '")
    assert text.splitlines()[2] == (
        "  try: --trust, or trust=True, for a file whose author may run code on this machine"
    )


def test_a_whole_message(tmp_path: Path) -> None:
    content, _ = pt2.hostile(MARKER)["function"]
    assert refusal(pt2.write(tmp_path / "m.pt2", content)) == (
        "the function 'torch.builtins.eval' is not an operator on tensors\n"
        f"  in:  {tmp_path / 'm.pt2'}, entry 'models/model.json'\n"
        "  try: --trust, or trust=True, for a file whose author may run code on this machine"
    )


def test_archives_that_are_larger_than_they_seem(tmp_path: Path) -> None:
    file = tmp_path / "m.pt2"
    pt2.write(file, pt2.relu() | {"extra/zeros": bytes(1 << 20)}, kind=zipfile.ZIP_DEFLATED)
    assert "is compressed, which torch never does" in refusal(file)
    pt2.write(file, pt2.relu())
    data = bytearray(file.read_bytes())
    at = data.rindex(b"PK\x01\x02")  # the last entry of the directory: its sizes
    data[at + 20 : at + 28] = (1 << 31).to_bytes(4, "little") * 2
    file.write_bytes(data)
    assert "its entries are larger than the file" in refusal(file)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((1 << 40,), "tensor 'w' has 1,099,511,627,776 elements, and 12 bytes are stored of it"),
        ((-3,), "the shape of tensor 'w' is damaged"),
        ((1 << 40, 0), ""),
        ((3,), ""),
    ],
)
def test_the_size_of_weights(tmp_path: Path, sizes: tuple[int, ...], said: str) -> None:
    listed = json.dumps(pt2.stored("w", "weight_0", *sizes)).encode()
    content = pt2.relu() | {pt2.WEIGHTS: listed, "data/weights/weight_0": bytes(12)}
    file = pt2.write(tmp_path / "m.pt2", content)
    if said:
        assert said in refusal(file)
    else:
        assert "data/weights/weight_0" in data_of(file).entries


def test_what_is_stored_of_nothing_has_no_elements(tmp_path: Path) -> None:
    listed = json.dumps(pt2.stored("w", "weight_0", 1 << 20)).encode()
    content = pt2.relu() | {pt2.WEIGHTS: listed, "data/weights/weight_0": b""}
    assert "0 bytes are stored of it" in refusal(pt2.write(tmp_path / "m.pt2", content))


def test_damaged_files(tmp_path: Path) -> None:
    file = pt2.write(tmp_path / "m.pt2", pt2.relu())
    whole = file.read_bytes()
    for size in range(0, len(whole), 97):
        file.write_bytes(whole[:size])
        assert "this is not a .pt2 file, or it is damaged" in refusal(file)
    for at in range(0, len(whole), 11):  # each byte is of an archive, or within a checked entry
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            data_of(file)
        except ImporterError:
            pass
    for entry in (pt2.MODEL, pt2.WEIGHTS, pt2.CONSTANTS):
        for text in (b"", b"[]", b"[" * 100_000, b"9" * 5000, b'{"config": 3}', b"\xff"):
            pt2.write(file, pt2.relu() | {entry: text})
            try:
                data_of(file)
            except ImporterError:
                pass


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.pt2")
    assert refusal(tmp_path / "m.pt2").startswith("cannot be read: it is a pipe, not a file\n")
    (tmp_path / "folder.pt2").mkdir()
    assert refusal(tmp_path / "folder.pt2").startswith("cannot be read: it is a folder, not a file")


@pytest.mark.parametrize(
    "text",
    [
        "Symbol('s77', positive=True, integer=True)",
        "Add(Mul(Integer(2), Symbol('s0', integer=True)), Integer(-1))",
        "FloorDiv(Add(Symbol('s0'), Integer(1)), Integer(2))",
        "Pow(Symbol('s0'), Integer(2))",
        "Mul(Float('0.5', precision=53), ToFloat(Symbol('s0')))",
        "And(true, StrictGreaterThan(Symbol('u0', integer=True), Integer(3)))",
        "Rational(1, 2)",
    ],
)
def test_expressions(text: str) -> None:
    assert expression(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').abort()",
        "eval('1')",
        "Symbol('__import__(\"os\")')",
        "Symbol('s0', key=open('x'))",
        "Symbol(*[1])",
        "Add('os.abort()', 1)",
        "Add(1, **{})",
        "(lambda: 1)()",
        "Symbol('s0').__class__",
        "[x for x in y]",
        "Float('1', precision=10**9)",
        "Float('os.abort()')",
        "Pow(Integer(10), Integer(10000000))",
        "Pow(Integer(10), Symbol('s0'))",
        "Pow(Pow(Pow(Pow(Integer(9), Integer(9)), Integer(9)), Integer(9)), Integer(9))",
        "Integer(" + "9" * 30 + ")",
        "Integer(" + "9" * 9000 + ")",
        "Add(" * 3000 + "1" + ")" * 3000,
        "Symbol('s99999999999')",
        "1 +",
        "",
        "f'{1}'",
        "open",
    ],
)
def test_what_is_no_expression(text: str) -> None:
    assert expression(text) is None


def test_operators() -> None:
    for target in (
        "torch.ops.aten.conv2d.default", "torch.ops.aten.add.Tensor", "_operator.mul",
        "torch.ops.aten._native_batch_norm_legit_no_training.default", "torch.sym_max",
        "torch.ops.aten.__and__.Tensor", "torch.ops.higher_order.cond", "math.ceil",
        "torch.ops.quantized_decomposed.quantize_per_tensor.default",
    ):  # fmt: skip
        assert is_operator(target), target
    for target in (
        "torch.os.system", "torch.builtins.exec", "torch.hub.load", "_operator.methodcaller",
        "_operator.setitem", "math.factorial", "torch.ops.load_library", "torch.ops.aten.add",
        "torch.ops.aten.__class__.mro", "torch.ops.aten.add.__call__",
        "torch.ops.aten.save.default",
        "torch.ops.inductor.accumulate_grad_.default", "torch.ops.own.thing.default", "", "torch",
        "torch.ops.higher_order.cond.fn", "#own:thing", "torch.ops.aten.add.Tensor\n",
    ):  # fmt: skip
        assert not is_operator(target), target
    assert is_operator("torch.ops.own.thing.default", {"own.thing"})
