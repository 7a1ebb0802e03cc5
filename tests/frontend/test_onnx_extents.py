"""Models whose shapes the data decide, on boards, against onnxruntime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

import mlc_deploy as mlc
from mlc_deploy.errors import ImporterError
from mlc_deploy.frontend import from_onnx
from tests.onnx_models import reference
from tests.sessions import TARGETS, aarch64, armv7, board_named, local

if TYPE_CHECKING:
    from mlc_rpc import Session

__all__ = ["aarch64", "armv7", "local"]  # fixtures

Array = NDArray[Any]
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
BOXES, CLASSES, MOST = 40, 3, 10
node = helper.make_node
ONE = numpy_helper.from_array(np.array([1]))


def value(name: str, shape: list[int | str] | None, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], **known: Array) -> ModelProto:
    tensors = [numpy_helper.from_array(a, n) for n, a in known.items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def detector() -> ModelProto:
    """What torchvision's detectors end in: of each class the scores above a threshold, of them the
    best; those of all classes together, and a suppression where there are any."""
    nodes: list[Any] = []
    for c in range(CLASSES):
        nodes += [
            node("Gather", ["scores", f"c{c}"], [f"s{c}"], axis=1),
            node("Greater", [f"s{c}", "threshold"], [f"kept{c}"]),
            node("NonZero", [f"kept{c}"], [f"nz{c}"]),
            node("Transpose", [f"nz{c}"], [f"at{c}"], perm=[1, 0]),
            node("GatherND", [f"s{c}", f"at{c}"], [f"own{c}"]),
            node("Shape", [f"own{c}"], [f"count{c}"]),
            node("Concat", [f"count{c}", "most"], [f"both{c}"], axis=0),
            node("ReduceMin", [f"both{c}"], [f"k{c}"], keepdims=1),
            node("TopK", [f"own{c}", f"k{c}"], [f"best{c}", f"order{c}"]),
            node("GatherND", ["boxes", f"at{c}"], [f"all{c}"]),
            node("Gather", [f"all{c}", f"order{c}"], [f"box{c}"], axis=0),
            node("Shape", [f"best{c}"], [f"found{c}"]),
            node("Expand", [f"c{c}", f"found{c}"], [f"label{c}"]),
        ]
    for name, parts in (("b", "box"), ("s", "best"), ("l", "label")):
        nodes.append(node("Concat", [f"{parts}{c}" for c in range(CLASSES)], [name], axis=0))
    inner = [
        node("Unsqueeze", ["b", "zero"], ["b3"]),
        node("Unsqueeze", ["s", "zeros"], ["s3"]),
        node("NonMaxSuppression", ["b3", "s3", "all", "overlap"], ["chosen"]),
        node("Gather", ["chosen", "two"], ["some"], axis=1),
    ]
    nothing = node("Constant", [], ["none"], value=numpy_helper.from_array(np.zeros(0, np.int64)))
    nodes += [
        node("Size", ["b"], ["size"]),
        node("Equal", ["size", "zero0"], ["empty"]),
        node(
            "If", ["empty"], ["keep"],
            then_branch=helper.make_graph([nothing], "t", [], [value("none", None, INT64)]),
            else_branch=helper.make_graph(inner, "e", [], [value("some", None, INT64)]),
        ),
        node("Slice", ["keep", "zero", "five"], ["first"]),
        node("Gather", ["b", "first"], ["boxes_out"], axis=0),
        node("Gather", ["s", "first"], ["scores_out"], axis=0),
        node("Gather", ["l", "first"], ["labels_out"], axis=0),
    ]  # fmt: skip
    known = {f"c{c}": np.array(c, np.int64) for c in range(CLASSES)}
    numbers = {"most": [MOST], "all": [1 << 31], "zero": [0], "zeros": [0, 1], "five": [5]}
    known |= {name: np.array(v, np.int64) for name, v in numbers.items()}
    known |= {"two": np.array(2), "zero0": np.array(0)}
    known |= {"threshold": np.array(0.5, np.float32), "overlap": np.array([0.4], np.float32)}
    return model(
        nodes,
        [value("boxes", [BOXES, 4]), value("scores", [BOXES, CLASSES])],
        [
            value("boxes_out", ["n", 4]),
            value("scores_out", ["n"]),
            value("labels_out", ["n"], INT64),
        ],
        **known,
    )


def drawn(seed: int, high: float) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    corners = rng.random((BOXES, 2), np.float32) * 4
    sides = rng.random((BOXES, 2), np.float32) + 0.5
    scores = rng.random((BOXES, CLASSES), np.float32) * np.float32(high)
    return {"boxes": np.concatenate([corners, corners + sides], 1), "scores": scores}


@pytest.mark.parametrize(
    "board", ["local", "armv7", pytest.param("aarch64", marks=pytest.mark.emulated)]
)
def test_a_detector_with_its_suppression(board: str, request: pytest.FixtureRequest) -> None:
    session: Session = board_named(request, board)
    proto = detector()
    compiled = mlc.compile(from_onnx(proto), TARGETS[board])
    module = session.load(compiled)
    for seed, high in enumerate((1.0, 0.6, 0.51, 0.4)):  # of the last, no score is high enough
        inputs = drawn(seed, high)
        found, right = module.run(inputs), reference(proto, inputs)
        for name, wanted in right.items():
            assert found[name].shape == wanted.shape and found[name].dtype == wanted.dtype
            np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-6)
        assert (len(found["scores_out"]) > 0) == (high > 0.5)
    module.close()


@pytest.mark.parametrize(
    ("nodes", "result"),
    [
        ([node("Compress", ["x", "kept"], ["y"], axis=0)], ["n", 3]),
        ([node("Compress", ["x", "kept"], ["y"])], ["n"]),
        ([node("NonZero", ["x"], ["p"]), node("Cast", ["p"], ["y"], to=FLOAT)], [2, "n"]),
        (
            [
                node("Compress", ["x", "kept"], ["r"], axis=0),
                node("Shape", ["r"], ["s"]),
                node("ConstantOfShape", ["s"], ["z"]),
                node("Sub", ["z", "r"], ["y"]),
            ],
            ["n", 3],
        ),
        (
            [
                node("Compress", ["x", "kept"], ["r"], axis=0),
                node("Size", ["r"], ["size"]),
                node("Range", ["zero", "size", "one"], ["i"]),
                node("Cast", ["i"], ["f"], to=FLOAT),
                node("Reshape", ["r", "minus"], ["flat"]),
                node("Mul", ["flat", "f"], ["y"]),
            ],
            ["n"],
        ),
        (
            [
                node("Compress", ["x", "kept"], ["r"], axis=0),
                node("Slice", ["r", "ones", "most"], ["y"]),
            ],
            ["n", 3],
        ),
        (  # x.expand(-1, 3): a shape in which what is not -1 stays
            [
                node("Compress", ["x", "kept"], ["r"], axis=0),
                node("ReduceMax", ["r"], ["column"], axes=[1], keepdims=1),
                node("Shape", ["r"], ["s"]),
                node("ConstantOfShape", ["two"], ["every"], value=ONE),
                node("Mul", ["every", "minus"], ["any"]),
                node("Equal", ["s", "any"], ["open"]),
                node("Where", ["open", "every", "s"], ["shape"]),
                node("Expand", ["column", "shape"], ["y"]),
            ],
            ["n", 3],
        ),
        (  # two parts that one mask takes are of one length
            [
                node("NonZero", ["kept"], ["a"]),
                node("NonZero", ["kept"], ["b"]),
                node("Gather", ["x", "a"], ["first"], axis=0),
                node("Gather", ["x", "b"], ["second"], axis=0),
                node("Add", ["first", "second"], ["y"]),
            ],
            [1, "n", 3],
        ),
        (  # with as many rows of zeros as are missing
            [
                node("Compress", ["x", "kept"], ["r"], axis=0),
                node("Slice", ["r", "three", "most", "ones"], ["none"]),
                node("Concat", ["r", "none"], ["whole"], axis=1),
                node("Shape", ["whole"], ["s"]),
                node("Slice", ["s", "zeros", "ones"], ["rows"]),
                node("Sub", ["six", "rows"], ["more"]),
                node("Concat", ["zeros", "zeros", "more", "zeros"], ["pads"], axis=0),
                node("Pad", ["whole", "pads"], ["y"]),
            ],
            [6, 3],
        ),
    ],
)
def test_what_follows_of_data(nodes: list[Any], result: list[int | str], local: Session) -> None:
    known = {
        "zero": np.array(0), "one": np.array(1), "minus": np.array([-1]), "ones": np.array([1]),
        "most": np.array([1 << 40]), "two": np.array([2]), "three": np.array([3]),
        "six": np.array([6]), "zeros": np.array([0]),
    }  # fmt: skip
    inputs = [value("x", [4, 3]), value("kept", [4], TensorProto.BOOL)]
    proto = model(nodes, inputs, [value("y", result)], **known)
    module = local.load(mlc.compile(from_onnx(proto), "host"))
    x = np.arange(12, dtype=np.float32).reshape(4, 3) - 3
    for kept in ([1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1]):
        given = {"x": x, "kept": np.array(kept, bool)}
        (wanted,) = reference(proto, given).values()
        found = module.run(
            {k: v for k, v in given.items() if k in {p.name for p in module.model.inputs}}
        )
        assert found["y"].shape == wanted.shape
        np.testing.assert_allclose(found["y"], wanted)
    module.close()


@pytest.mark.parametrize("board", ["local", "aarch64", "armv7"])
@pytest.mark.parametrize("how", [{}, {"axis": 1}, {"sorted": 0}, {"axis": 0, "sorted": 0}])
def test_different_elements(how: dict[str, Any], board: str, request: Any) -> None:
    session: Session = board_named(request, board)
    results = [value("y", None), *(value(name, None, INT64) for name in "fic")]
    proto = model([node("Unique", ["x"], list("yfic"), **how)], [value("x", [2, 6, 2])], results)
    module = session.load(mlc.compile(from_onnx(proto), TARGETS[board]))
    for seed in range(4):
        x = np.random.default_rng(seed).integers(0, 1 + seed, (2, 6, 2)).astype(np.float32)
        found = module.run({"x": x})
        for name, wanted in reference(proto, {"x": x}).items():
            np.testing.assert_array_equal(found[name], wanted, err_msg=name)
    module.close()


def test_a_length_without_a_bound_is_refused() -> None:
    """How long a range is, an input may say; how long it can be, nothing says."""
    nodes = [node("Range", ["zero", "n", "one"], ["y"])]
    known = {"zero": np.array(0), "one": np.array(1)}
    proto = model(nodes, [value("n", [], INT64)], [value("y", ["k"], INT64)], **known)
    with pytest.raises(ImporterError, match="'range' is known only at run time"):
        from_onnx(proto)


@pytest.mark.parametrize("name", ["batch", "x", "y"])
def test_a_batch_of_any_size(name: str, local: Session) -> None:
    """view(batch, -1), rows from the second on, the first hundred; and a dimension that is called
    as an input or output is."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Slice", ["shape", "zero", "one"], ["first"]),
        node("Concat", ["first", "minus"], ["two"], axis=0),
        node("Reshape", ["x", "two"], ["flat"]),
        node("Slice", ["flat", "one", "many"], ["tail"]),
        node("Slice", ["tail", "zero", "hundred"], ["y"]),
    ]
    known = {"zero": [0], "one": [1], "minus": [-1], "many": [1 << 40], "hundred": [100]}
    tensors = {key: np.array(v, np.int64) for key, v in known.items()}
    proto = model(nodes, [value("x", [name, 4, 3])], [value("y", None)], **tensors)
    compiled = mlc.compile(from_onnx(proto, dims={name: "<=8"}), "host")
    module = local.load(compiled)
    for batch in (1, 2, 8):
        given = {"x": np.random.default_rng(batch).random((batch, 4, 3), np.float32)}
        (wanted,) = reference(proto, given).values()
        assert wanted.shape == (batch - 1, 12)
        np.testing.assert_array_equal(module.run(given)["y"], wanted)
    module.close()


def test_rows_of_two_open_dimensions_cut_and_put_together_again(local: Session) -> None:
    """x [batch, length, 24] as rows of 8, then of 12, then as [batch, -1, 2, 12]: the length is
    x's own, as what x is joined with shows."""
    nodes = [
        node("Reshape", ["x", "eights"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("Reshape", ["b", "twelves"], ["c"]),
        node("Shape", ["x"], ["batch"], start=0, end=1),
        node("Concat", ["batch", "behind"], ["last"], axis=0),
        node("Reshape", ["c", "last"], ["d"]),
        node("Reshape", ["x", "pairs"], ["e"]),
        node("Concat", ["d", "e"], ["y"], axis=2),
    ]
    known = {"eights": [-1, 8], "twelves": [-1, 12], "behind": [-1, 2, 12], "pairs": [0, 0, 2, 12]}
    tensors = {key: np.array(v, np.int64) for key, v in known.items()}
    x = value("x", ["batch", "length", 24])
    proto = model(nodes, [x], [value("y", None)], **tensors)
    function = from_onnx(proto, dims={"batch": "<=3", "length": "<=5"})
    assert str(function.outputs[0].type) == "float32[batch, length, 4, 12]"
    loaded = local.load(mlc.compile(function, "host"))
    for shape in ((1, 1, 24), (2, 5, 24), (3, 4, 24)):
        given = {"x": np.random.default_rng(1).standard_normal(shape, np.float32)}
        (wanted,) = reference(proto, given).values()
        np.testing.assert_array_equal(loaded.run(given)["y"], wanted)
    loaded.close()


def test_memory_is_planned_for_a_quotient_by_an_open_dimension() -> None:
    """As exporters write x.reshape(batch, -1, 8): 8 // batch * 7 // 8 rows, of a batch of one."""
    nodes = [
        node("Shape", ["x"], ["n"], start=0, end=1),
        node("Div", ["eight", "n"], ["part"]),
        node("Mul", ["part", "seven"], ["parts"]),
        node("Div", ["parts", "eight"], ["rows"]),
        node("Concat", ["n", "rows", "eight"], ["shape"], axis=0),
        node("Reshape", ["x", "shape"], ["y"]),
    ]
    known = {"seven": np.array([7]), "eight": np.array([8])}
    proto = model(nodes, [value("x", ["n", 7, 8])], [value("y", None)], **known)
    most = dict(from_onnx(proto, dims={"n": "<=2"}).extents)
    assert most.pop("n") == 2
    assert list(most.values()) == [7]


RANGES = ((0, "n", 2), (1, "n", 3), ("n", -2, -1), ("n", 0, -3), (4, "n", 1), ("n", 9, 2))


def test_ranges_by_any_step_of_an_open_dimension(local: Session) -> None:
    nodes = [node("Shape", ["x"], ["shape"]), node("Squeeze", ["shape"], ["n"])]
    known: dict[str, Array] = {}
    for number, ends in enumerate(RANGES):
        names = [f"{end}" if end == "n" else f"k{end}" for end in ends]
        known |= {k: np.array(end) for k, end in zip(names, ends, strict=True) if k != "n"}
        nodes.append(node("Range", names, [f"y{number}"]))
    outputs = [value(f"y{number}", ["k"], INT64) for number in range(len(RANGES))]
    proto = model(nodes, [value("x", ["n"])], outputs, **known)
    loaded = local.load(mlc.compile(from_onnx(proto, dims={"n": "<=11"}), "host"))
    for n in (1, 2, 3, 7, 11):
        x = np.zeros(n, np.float32)
        found = loaded.run({"x": x})
        for name, right in reference(proto, {"x": x}).items():
            np.testing.assert_array_equal(found[name], right, f"{name} of {n}")
    loaded.close()


def test_two_names_of_one_open_dimension(local: Session) -> None:
    proto = model(
        [node("Add", ["ids", "mask"], ["y"])],
        [value("ids", ["n", 2]), value("mask", ["m", 2])],
        [value("y", None)],
    )
    loaded = local.load(mlc.compile(proto, "host", dims={"n": "<=4", "m": "n"}))
    for n in (1, 4):
        ones = np.ones((n, 2), np.float32)
        np.testing.assert_array_equal(loaded.run({"ids": ones, "mask": ones})["y"], 2 * ones)
    loaded.close()


def test_slices_by_any_step_of_an_open_dimension(local: Session) -> None:
    """ONNX's places before the first and behind the last are those that there are."""
    far = (1 << 63) - 1
    cuts = [(-1, -far, -1), (3, -12, -1), (far, 1, -2), (-2, 0, -3), (0, far, 2), (2, -1, 3),
            (-5, 9, 2), (0, -12, -1)]  # fmt: skip
    nodes, known = [], {"axis": np.array([0])}
    for number, cut in enumerate(cuts):
        names = [f"{what}{number}" for what in ("begin", "end", "step")]
        known |= {name: np.array([at]) for name, at in zip(names, cut, strict=True)}
        begin, end, step = names
        nodes.append(node("Slice", ["x", begin, end, "axis", step], [f"y{number}"]))
    outputs = [value(f"y{number}", None) for number in range(len(cuts))]
    proto = model(nodes, [value("x", ["n", 3])], outputs, **known)
    loaded = local.load(mlc.compile(from_onnx(proto, dims={"n": "<=11"}), "host"))
    for n in (1, 2, 4, 11):
        x = np.arange(n * 3, dtype=np.float32).reshape(n, 3)
        found, expected = loaded.run({"x": x}), reference(proto, {"x": x})
        for name, right in expected.items():
            np.testing.assert_array_equal(found[name], right, f"{name} of {n}")
    loaded.close()
