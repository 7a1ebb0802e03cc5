"""What the ONNX front end refuses, and the whole message that says why and how to mend it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import mlc_deploy as mlc
from mlc_deploy.errors import ImporterError, ModelWarning
from mlc_deploy.frontend import OnnxNode, from_onnx
from mlc_deploy.frontend.onnx_file import LARGE
from mlc_deploy.graph import evaluate
from tests.onnx_models import one_node

DIGITS = Path(__file__).parents[2] / "host" / "mlc_deploy" / "models" / "digits_mlp.onnx"
X = np.ones((2, 3), np.float32)


def refusal(model: Any, **options: Any) -> str:
    with pytest.raises(ImporterError) as caught:
        from_onnx(model, **options)
    return str(caught.value)


def dynamic(shape: list[str | int | None] | None, dtype: int = TensorProto.FLOAT) -> Any:
    """A model of one Relu on x of that shape."""
    node = helper.make_node("Relu", ["x"], ["y"], name="relu")
    x = helper.make_tensor_value_info("x", dtype, shape)
    y = helper.make_tensor_value_info("y", dtype, None)
    graph = helper.make_graph([node], "graph", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


# ---------------------------------------------------------------------------------------- files


def test_no_such_file() -> None:
    assert refusal("missing.onnx") == "there is no such file\n  in:  missing.onnx"


def test_a_folder(tmp_path: Path) -> None:
    assert refusal(tmp_path) == (
        f"the model is a folder\n  in:  {tmp_path}\n  try: the .onnx file in it"
    )


def test_onnxruntimes_own_format() -> None:
    assert refusal(b"\x18\0\0\0ORTM" + bytes(40)) == (
        "this is a model in onnxruntime's own format (.ort)\n"
        "  in:  the model\n"
        "  try: the .onnx file that it was made from"
    )


@pytest.mark.parametrize("data", [b"", b"hello, world\n", b"\x89PNG\r\n\x1a\n" + bytes(40)])
def test_not_onnx(data: bytes) -> None:
    assert refusal(data) == (
        "this is not an ONNX model\n"
        "  in:  the model\n"
        "  try: export the model to ONNX, for example with torch.onnx.export"
    )


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_truncated(share: float, tmp_path: Path) -> None:
    data = DIGITS.read_bytes()
    path = tmp_path / "cut.onnx"
    path.write_bytes(data[: int(share * len(data))])
    assert refusal(path) == (
        f"the ONNX model is damaged or cut off ({int(share * len(data))} bytes)\n"
        f"  in:  {path}\n"
        "  try: copy or export the file again"
    )


def test_a_missing_value() -> None:
    model = one_node("Relu", {"x": X})
    model.graph.node[0].input[0] = "z"
    assert refusal(model) == (
        "the ONNX model is damaged: nothing computes the input 'z'\n"
        "  in:  the model, node 'node' (Relu)\n  try: copy or export the file again"
    )


def test_an_old_opset_that_onnx_cannot_convert() -> None:
    assert refusal(one_node("Cast", {"x": X}, 5, to="FLOAT")) == (
        "the model is of opset 5; the oldest that can be read is 6\n"
        "  in:  the model\n"
        "  try: export it again, of a later opset (onnx.version_converter cannot convert it)"
    )


def test_a_later_opset() -> None:
    newest = onnx.defs.onnx_opset_version()
    assert refusal(one_node("Relu", {"x": X}, 99)) == (
        f"the model is of opset 99; the installed onnx {onnx.__version__} knows {newest}\n"
        "  in:  the model\n"
        "  try: pip install --upgrade onnx"
    )


def test_a_later_file_format() -> None:
    model = one_node("Relu", {"x": X})
    model.ir_version = 99
    assert refusal(model) == (
        f"the model is of ONNX's file format 99; the installed onnx {onnx.__version__} reads up to "
        f"{onnx.IR_VERSION}\n  in:  the model\n  try: pip install --upgrade onnx"
    )


def test_external_data_missing(tmp_path: Path) -> None:
    model = one_node("Add", {"x": X, "w": X}, constants=["w"])
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    from_onnx(path)
    (tmp_path / "w.bin").unlink()
    assert refusal(path) == (
        f"the weights in 'w.bin' are missing\n  in:  {path}\n  try: put it into {tmp_path}"
    )


def test_external_data_does_not_leave_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = folder / "model.onnx"
    model = one_node("Add", {"x": X, "w": X}, constants=["w"])
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    (folder / "w.bin").rename(tmp_path / "w.bin")
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer[0].external_data[0].value = "../w.bin"
    path.write_bytes(model.SerializeToString())
    assert "w.bin" in refusal(path)


# ------------------------------------------------------------------------------------ operators


def unsupported() -> Any:
    nodes = [
        helper.make_node("Multinomial", ["x"], ["a"], name="first"),
        helper.make_node("Fancy", ["x"], ["b"], name="f1", domain="com.acme"),
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Fancy", ["b"], ["y"], domain="com.acme"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.acme", 1)]
    graph = helper.make_graph(nodes, "graph", [x], [y])
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_all_missing_operators_are_listed() -> None:
    assert refusal(unsupported()) == (
        "2 operators are not supported:\n"
        "    Multinomial (once, at node 'first'): boards generate no random numbers; "
        "pass them as an input\n"
        "    com.acme::Fancy (2 times, first at node 'f1')\n"
        "  in:  the model\n"
        "  try: supply a converter: "
        'mlc.compile(..., converters={"Multinomial": convert}), where convert\n'
        "       takes an OnnxNode and returns node.emit(operator, *node.inputs, ...)"
    )


def test_supplied_converters(tmp_path: Path) -> None:
    def fancy(node: OnnxNode) -> Any:
        return node.emit("multiply", node.input(0), node.constant(3, node.dtype()))

    converters: dict[str, Callable[[OnnxNode], Any]] = {
        "com.acme::Fancy": fancy,
        "Multinomial": lambda node: node.input(0),
    }
    function = from_onnx(unsupported(), converters=converters)
    np.testing.assert_array_equal(evaluate(function, [X])["y"], 9 * X)
    path = tmp_path / "fancy.onnx"
    onnx.save(unsupported(), path)
    compiled = mlc.compile(path, "aarch64", converters=converters)
    assert compiled.reference.script() == function.script()


def test_sequences() -> None:
    x = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, None)
    y = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "graph", [x], [y])
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    assert refusal(model) == (
        "input 'x' is a sequence, and nothing says how many tensors it has\n"
        "  in:  the model\n"
        "  try: --shape x.0=2,3 --shape x.1=2,3 …: their shapes"
    )


def test_shape_that_depends_on_data() -> None:
    model = one_node("Reshape", {"x": X, "shape": np.array([3, 2])})
    assert refusal(model) == (
        "'shape' is known only at run time, but is needed when the model is compiled\n"
        "  in:  the model, node 'node' (Reshape)\n"
        "  try: --const shape=… (values= in Python), where that is always the same"
    )
    function = from_onnx(model, values={"shape": np.array([3, 2])})
    assert evaluate(function, [X])["y"].shape == (3, 2)


def test_operator_refuses_its_inputs() -> None:
    model = one_node("Add", {"x": X, "w": np.ones((4, 4), np.float32)}, constants=["w"])
    assert refusal(model) == (
        "add: the shapes [2, 3] and [4, 4] do not broadcast\n  in:  the model, node 'node' (Add)"
    )


def test_open_dimensions_that_may_differ() -> None:
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[q, past] scores, float[q, 3] keys, float[q, total] mask) => (float[q, k] y) {
            all = Concat <axis = 1> (scores, keys)
            y = Add (all, mask)
        }""")
    assert refusal(model, dims={"q": "<=4", "past": "<=8", "total": "<=11"}) == (
        "add: the shapes [q, past + 3] and [q, total] do not broadcast\n"
        "  in:  the model, node 'Add_1' (Add)\n"
        "  try: --bind with a number for past, total"
    )


def test_a_transform_of_open_length() -> None:
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[1, n, 1] x) => (float[1, n, 2] y) { y = DFT <axis = 1> (x) }""")
    assert refusal(model, dims={"n": "<=8"}) == (
        "the node needs to know 'n', which is known only at run time\n"
        "  in:  the model, node 'DFT_0' (DFT)\n"
        "  try: n=16: one of its sizes"
    )


def test_open_dimensions_of_two_names() -> None:
    """A model whose mask and ids have dimensions of their own: they may be said to be the same."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[n] ids, float[m] mask) => (float[k] y) { y = Add (ids, mask) }""")
    assert refusal(model, dims={"n": "<=4", "m": "<=4"}) == (
        "add: the shapes [n] and [m] do not broadcast\n"
        "  in:  the model, node 'Add_0' (Add)\n"
        "  try: --bind with a number for m, n; or --bind n=m, if that is so in every run"
    )
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_value = 3
    assert refusal(model, dims={"n": "<=4"}).endswith(
        "  try: --bind with a number for n; or --bind n=3, if that is so in every run"
    )


# ------------------------------------------------------------------------------- dtypes, shapes


def test_strings() -> None:
    message = refusal(dynamic([2], TensorProto.STRING))
    assert message == (
        "input 'x' is of type STRING, which is not supported\n"
        "  in:  the model\n"
        "  try: one of float32, float16, float64, int8, int16, int32, int64, uint8, uint16, "
        "uint32, uint64, bool"
    )


def test_weights_that_do_not_fill_their_shape() -> None:
    model = one_node("Add", {"x": X, "w": X}, constants=["w"])
    tensor = numpy_helper.from_array(X, "w")
    tensor.raw_data = tensor.raw_data[:-4]
    model.graph.initializer[0].CopyFrom(tensor)
    message = refusal(model)
    assert "'w'" in message or ("w" in message and "damaged" in message)


def test_large_weights_that_do_not_fill_their_shape() -> None:
    x = np.zeros((2, LARGE), np.float32)
    model = one_node("Add", {"x": x, "w": x}, constants=["w"])
    tensor = numpy_helper.from_array(x, "w")
    tensor.raw_data = tensor.raw_data[:-4]
    model.graph.initializer[0].CopyFrom(tensor)
    message = refusal(model)
    assert message.startswith("tensor 'w' cannot be read: cannot reshape array of size "), message


@pytest.mark.parametrize(
    ("shape", "way"),
    [
        (["batch", 3], "--bind batch=4"),
        (["N", 3, 8, 8], "--bind N=4"),
        ([None, 3, 8], "--shape x=4,3,8"),
    ],
)
def test_a_lone_batch_is_1(shape: list[str | int | None], way: str) -> None:
    with pytest.warns(ModelWarning) as told:
        function = from_onnx(dynamic(shape))
    assert function.params[0].type.shape == (1, *shape[1:])
    (warning,) = told
    shown = ", ".join(str(d or "?") for d in shape)
    assert str(warning.message) == f"'x': the batch of [{shown}] is 1; for another: {way}"


@pytest.mark.parametrize("shape", [["n"], [2, "n"], ["n", "n"], ["batch", 3, "h"]])
def test_other_unknown_sizes_are_asked_for(shape: list[str | int | None]) -> None:
    assert refusal(dynamic(shape)).startswith("the shape of an input is not known: 'x' [")


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        (
            ["batch", 3, "h", None],
            {},
            "the shape of an input is not known: 'x' [batch, 3, h, ?]\n"
            "  in:  the model\n"
            "  try: --shape x=1,3,224,224",
        ),
        (
            None,
            {},
            "the shape of an input is not known: 'x' of unknown rank\n"
            "  in:  the model\n"
            "  try: --shape x=1,3,224,224",
        ),
        (
            ["batch", 3],
            {"shapes": {"y": (1, 3)}},
            "the model has no input 'y'\n  in:  the model\n  try: x",
        ),
        (
            ["batch", 3],
            {"shapes": {"x": (1, 3, 2)}},
            "the shape 1,3,2 of 'x' contradicts the model, where it is [batch, 3]\n"
            "  in:  the model\n"
            "  try: a shape that fits, or export the model with that dimension dynamic",
        ),
        (
            ["batch", 3],
            {"shapes": {"x": (1, 4)}},
            "the shape 1,4 of 'x' contradicts the model, where it is [batch, 3]\n"
            "  in:  the model\n"
            "  try: a shape that fits, or export the model with that dimension dynamic",
        ),
        (
            ["batch", 3],
            {"shapes": {"x": (-1, 3)}},
            "the shape -1,3 of 'x' has a negative dimension\n  in:  the model",
        ),
        (
            ["batch", 3],
            {"dims": {"seq": 1}},
            "--bind names 'seq', which is not a dimension of the model's inputs\n"
            "  in:  the model\n"
            "  try: batch",
        ),
        (
            ["n", 3],
            {"shapes": {"x": (2, 3)}, "dims": {"n": 4}},
            "dimension 'n' is 4, and 2 by the shape of 'x'\n"
            "  in:  the model\n"
            "  try: --bind n=2, or none",
        ),
        (
            ["n", 3],
            {"shapes": {"x": (2, 3)}, "dims": {"n": "<=4"}},
            "--bind 'n<=4' makes a dimension dynamic, and the shape of 'x' fixes it to 2\n"
            "  in:  the model\n"
            "  try: --bind n=2, or --bind alone for every dynamic dimension of 'x'",
        ),
    ],
)
def test_shapes(shape: Any, options: Any, message: str) -> None:
    assert refusal(dynamic(shape), **options) == message


def test_a_shape_that_is_given_counts_more_than_a_name() -> None:
    with pytest.warns(ModelWarning) as warned:
        function = from_onnx(dynamic(["n", "n"]), shapes={"x": (2, 3)})
    assert [str(w.message) for w in warned] == [
        "dimension 'n' is 2, and 3 by the shape of 'x': the model calls two dimensions by one name"
    ]
    assert function.params[0].type.shape == (2, 3)


def test_sizes_that_do_not_fit_are_an_inputs() -> None:
    """Weights alone say what an open size must be."""
    model = one_node("MatMul", {"x": X, "w": np.ones((5, 2), np.float32)}, constants=["w"])
    open_size = model.graph.input[0].type.tensor_type.shape.dim[1]
    open_size.dim_param = "features"
    assert refusal(model, shapes={"x": (2, 3)}) == (
        "dense: [2, 3] and weights [5, 2] do not fit\n"
        "  in:  the model, node 'node' (MatMul)\n"
        "  try: --shape, with other sizes for 'x' [2, features], which is 2,3 here"
    )
    open_size.dim_value = 3
    assert "try:" not in refusal(model)


@pytest.mark.parametrize(
    ("shape", "tried"),
    [
        (["n", 3, "h", "w"], "1,3,224,224"), (["seq", "batch", 40], "1,1,40"),
        (["time", "time"], "1,1"), (["b", "time"], "1,128"), ([None, None, 8], "1,128,8"),
        (None, "1,3,224,224"), (["b", "num_samples"], "1,16000"),
    ],
)  # fmt: skip
def test_shapes_that_are_suggested(shape: Any, tried: str) -> None:
    """What is suggested is taken."""
    assert refusal(dynamic(shape)).endswith(f"  try: --shape x={tried}")
    extents = tuple(map(int, tried.split(",")))
    function = from_onnx(dynamic(shape), shapes={"x": extents})
    assert function.params[0].type.shape == extents


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"z": 1}, "the model has no input 'z'\n  in:  the model\n  try: x, shape"),
        (
            {"shape": 2.5},
            "input 'shape' is int64, which cannot hold 2.5\n  in:  the model",
        ),
        (
            {"shape": [1, 2, 3]},
            "input 'shape' is int64[2], and the value given has the shape [3]\n"
            "  in:  the model\n"
            "  try: one number for all elements, or an array of that shape",
        ),
    ],
)
def test_values(values: Any, message: str) -> None:
    model = one_node("Reshape", {"x": X, "shape": np.array([3, 2])})
    assert refusal(model, values=values) == message


def test_a_value_of_another_dtype_and_shape() -> None:
    """One number stands for all elements, whatever its dtype."""
    model = one_node("Add", {"x": X, "k": X})
    function = from_onnx(model, values={"k": 2})
    assert [p.name for p in function.params] == ["x"]
    np.testing.assert_array_equal(evaluate(function, [X])["y"], X + 2)
    made = mlc.compile(function, "aarch64", values={"x": 1})
    assert not made.program.inputs


@pytest.mark.parametrize(
    "options", [{"shapes": {"x": (1, 3)}}, {"dims": {"batch": 1}}, {"shapes": {"x": [1, 3]}}]
)
def test_bound_shapes(options: Any) -> None:
    function = from_onnx(dynamic(["batch", 3]), **options)
    assert function.params[0].type.shape == (1, 3)
