"""Sizes as algebra: equal dynamic sizes that models write in different ways, counted loops, and
random stacks of layers, each run at several sizes against onnxruntime."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, parser
from onnxruntime.capi import onnxruntime_pybind11_state as onnxruntime_errors

import mlc_deploy as mlc
from mlc_deploy.errors import ImporterError
from mlc_deploy.frontend import from_onnx
from mlc_rpc.errors import Crashed
from tests.onnx_models import reference
from tests.sessions import local

if TYPE_CHECKING:
    from mlc_rpc import Session

__all__ = ["local"]  # a fixture

Array = NDArray[Any]
MOST = 40
SIZES = (1, 2, 7, 32, MOST)
rng = np.random.default_rng(11)

LOOP = """
g (float[n, 3] x) => (float[3] y, float[3] last) {
    shape = Shape (x)
    zero = Constant <value = int64 {0}> ()
    length = Gather (shape, zero)
    most = Constant <value = int64 {4611686018427387904}> ()
    GOING
    start = Constant <value_floats = [0.0, 0.0, 0.0]> ()
    last, every = Loop <body = b (int64 i, bool c, float[3] a) => (bool d, float[3] o, float[3] p) {
        one = Constant <value = int64 {1}> ()
        xi = Gather (x, i)  o = Add (a, xi)  p = Identity (o)  next = Add (i, one)
        CONDITION }> (most, going, start)
    minus = Constant <value_ints = [-1]> ()
    end = Constant <value_ints = [9223372036854775807]> ()
    first = Constant <value_ints = [0]> ()
    tail = Slice (every, minus, end, first)
    y = Squeeze (tail, first)
}"""
COUNTER = """
g (float[n, 3] x) => (float[3] last, int64 count) {
    shape = Shape (x)
    zero = Constant <value = int64 {0}> ()
    length = Gather (shape, zero)
    going = Constant <value = bool {1}> ()
    start = Constant <value_floats = [0.0, 0.0, 0.0]> ()
    most = Constant <value = int64 {9223372036854775807}> ()
    count, last = Loop <body = b (int64 i, bool c, int64 k, float[3] a)
            => (bool d, int64 next, float[3] o) {
        one = Constant <value = int64 {1}> ()
        xi = Gather (x, k)  o = Add (a, xi)  next = Add (k, one)
        d = Greater (length, next) }> (most, going, zero, start)
}"""
TRUE = "going = Constant <value = bool {1}> ()"
TEXTS = {
    "negated length": """
g (float[n, 3] x) => (float[n, 3] y) {
    first = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    end = Constant <value_ints = [9223372036854775807]> ()
    shape = Shape (x)
    rows = Slice (shape, first, one)
    back = Neg (rows)
    y = Slice (x, back, end, first)
}""",
    "half of the length from the end": """
g (float[n, 3] x) => (float[k, 3] y) {
    first = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    two = Constant <value_ints = [2]> ()
    end = Constant <value_ints = [9223372036854775807]> ()
    shape = Shape (x)
    rows = Slice (shape, first, one)
    half = Div (rows, two)
    back = Neg (half)
    y = Slice (x, back, end, first)
}""",
    "the first element beside all": """
g (float[1, n] x) => (float[1, n] y) {
    first = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    begin = Slice (x, first, one, one)
    y = Sub (x, begin)
}""",
    "a loop by its number": LOOP.replace("GOING", TRUE).replace(
        "CONDITION", "d = Less (next, length)"
    ),
    "a loop that may not begin": LOOP.replace("GOING", "going = Less (zero, length)").replace(
        "CONDITION", "d = Less (next, length)"
    ),
    "a loop by floats": LOOP.replace("GOING", TRUE).replace(
        "CONDITION",
        "f = Cast <to = 1> (next)  m = Cast <to = 1> (length)  d = Less (f, m)",
    ),
    "a loop by two conditions": LOOP.replace("GOING", TRUE).replace(
        "CONDITION",
        "five = Constant <value = int64 {5}> ()  d0 = Less (next, length)"
        "  d1 = GreaterOrEqual (five, i)  d = And (d0, d1)",
    ),
    "a loop by its own counter": COUNTER,
    **{
        f"{op} {pad} {more}": f"""
g (float[1, 2, n, m] x) => (float[1, 2, h, w] y) {{
    y = {op} <kernel_shape = [3, 3], strides = [2, 2], auto_pad = "{pad}" {more}> (x)
}}"""
        for pad in ("SAME_UPPER", "SAME_LOWER")
        for op, more in (
            ("MaxPool", ""),
            ("AveragePool", ""),
            ("AveragePool", ", count_include_pad = 1"),
            ("LpPool", ""),
        )
    },
}


def check(proto: ModelProto, session: Session, sizes: Any = SIZES) -> None:
    """Holds a model at several sizes."""
    dims = {d.dim_param for i in proto.graph.input for d in i.type.tensor_type.shape.dim} - {""}
    made = mlc.compile(from_onnx(proto, dims=dict.fromkeys(dims, f"<={MOST}")), "host")
    module = session.load(made)
    for k, n in enumerate(sizes):
        own = {name: n if not j else sizes[-1 - k] for j, name in enumerate(sorted(dims))}
        inputs = {
            i.name: rng.standard_normal(
                [d.dim_value or own[d.dim_param] for d in i.type.tensor_type.shape.dim],
                dtype=np.float32,
            )
            for i in proto.graph.input
        }
        found = module.run(inputs)
        for name, wanted in reference(proto, inputs).items():
            assert found[name].shape == wanted.shape, (name, own)
            np.testing.assert_allclose(found[name], wanted, 1e-4, 1e-5, err_msg=f"{name}, {own}")
    module.close()


@pytest.mark.parametrize("name", TEXTS)
def test_sizes(name: str, local: Session) -> None:
    check(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>{TEXTS[name]}'), local)


@pytest.mark.parametrize("turns", ["0", "1"])
def test_a_loop_that_never_turns_collects_nothing(turns: str, local: Session) -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]>
g (float[2] x) => (float[2] y) {
    most = Constant <value = int64 {TURNS}> ()
    going = Constant <value = bool {1}> ()
    every = Loop <body = b (int64 i, bool c) => (bool d, float[2] p) {
        d = Identity (c)  p = Exp (x) }> (most, going)
    y = ReduceSum <keepdims = 0> (every, axis)
}"""
    proto = parser.parse_model(text.replace("TURNS", turns))
    proto.graph.initializer.append(numpy_helper.from_array(np.array([0]), "axis"))
    check(proto, local, [1])


def test_a_state_that_grows_by_extents_is_refused() -> None:
    text = COUNTER.replace("o = Add (a, xi)", "s = Add (a, xi)  o = Concat <axis = 0> (a, s)")
    text = text.replace("float[3] a", "float[z] a").replace("float[3] o", "float[w] o")
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>{text}')
    with pytest.raises(
        ImporterError, match="the loop's state changes its shape from iteration to iteration"
    ):
        from_onnx(proto, dims={"n": f"<={MOST}"})


RANGE = """<ir_version: 8, opset_import: ["" : 18]>
g (DTYPE[n] x) => (DTYPE[k] y) {
    start = Constant <value = DTYPE {1}> ()
    step = Constant <value = DTYPE {STEP}> ()
    total = ReduceSum <keepdims = 0> (x)
    numbers = Range (start, total, step)
    y = Add (numbers, numbers)
}"""


@pytest.mark.parametrize(("dtype", "step"), [("int64", "1"), ("int32", "-3"), ("float", "2.5")])
def test_a_range_up_to_a_computed_limit(dtype: str, step: str, local: Session) -> None:
    proto = parser.parse_model(RANGE.replace("DTYPE", dtype).replace("STEP", step))
    function = from_onnx(proto, dims={"n": "<=4", "numbers": "<=10"})
    module = local.load(mlc.compile(function, "host"))
    kind = {"int64": np.int64, "int32": np.int32, "float": np.float32}[dtype]
    for values in ([3, 4], [-2], [1, 1, 1, 1], [0]):
        inputs = {"x": np.array(values, kind)}
        (wanted,) = reference(proto, inputs).values()
        np.testing.assert_array_equal(module.run(inputs)["y"], wanted)
    longer = [-40] if step == "-3" else [40]
    with pytest.raises(Crashed, match=r"a larger bound where it was compiled \(--bind 'NAME<=N'\)"):
        module.run({"x": np.array(longer, kind)})
    module.close()


def test_a_range_without_a_bound_is_refused() -> None:
    proto = parser.parse_model(RANGE.replace("DTYPE", "int64").replace("STEP", "1"))
    with pytest.raises(ImporterError) as caught:
        from_onnx(proto, dims={"n": "<=4"})
    assert str(caught.value) == (
        "'range' is known only at run time, but is needed when the model is compiled\n"
        "  in:  the model, node 'Range_3' (Range)\n"
        "  try: --bind 'numbers<=512', with the most elements that 'numbers' has; or --const x=… "
        "(values= in Python), where that is always the same"
    )


# ------------------------------------------------------------------------------------- stacks


class Stack:
    """Random layers over data [1, 4, n] or [1, 4, n, m], and joins of results of equal sizes."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rank = self.rng.choice((1, 2))
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        self.last = "x"

    def known(self, array: Any) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(array), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def add(self, op: str, inputs: list[str], **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def conv(self, x: str, kernel: int, stride: int, pads: list[int]) -> str:
        shape = (4, 4, *[kernel] * self.rank)
        w = self.known(rng.normal(0, 0.2, shape).astype(np.float32))
        return self.add("Conv", [x, w], strides=[stride] * self.rank, pads=pads)

    def layer(self, x: str) -> str:
        draw, rank = self.rng, self.rank
        kernel, stride = draw.choice((1, 2, 3, 5)), draw.choice((1, 1, 2))
        pads = [draw.randint(0, kernel // 2) for _ in range(2 * rank)]
        window = {"kernel_shape": [kernel] * rank, "strides": [stride] * rank}
        match draw.randrange(9):
            case 0 | 1:
                return self.conv(x, kernel, stride, pads)
            case 2:
                op = draw.choice(("MaxPool", "AveragePool"))
                return self.add(op, [x], pads=pads, ceil_mode=draw.randint(0, 1), **window)
            case 3:
                op = draw.choice(("MaxPool", "AveragePool"))
                return self.add(
                    op, [x], auto_pad=draw.choice(("SAME_UPPER", "SAME_LOWER")), **window
                )
            case 4:
                own = [0, 0, *(draw.randint(0, 3) for _ in range(rank))] * 2
                return self.add("Pad", [x, self.known(np.array(own))])
            case 5:
                begin, step = draw.choice((0, 0, 1, -3)), draw.choice((1, 1, 2))
                end = draw.choice((2**62, 2**62, -1))
                numbers = ([begin], [end], [2], [step])
                return self.add("Slice", [x, *(self.known(np.array(v)) for v in numbers)])
            case 6:  # to rows and back
                flat = self.add("Reshape", [x, self.known(np.array([0, 0, -1]))])
                return self.add("Reshape", [self.add("Relu", [flat]), self.add("Shape", [x])])
            case 7:
                scales = np.array([1, 1, *[2] * rank], np.float32)
                return self.add(
                    "Resize",
                    [x, "", self.known(scales)],
                    mode="nearest",
                    coordinate_transformation_mode="asymmetric",
                    nearest_mode="floor",
                )
        return self.add("Concat", [x, x], axis=2)

    def joined(self, x: str) -> str:
        """x, and a way around that keeps its size."""
        match self.rng.randrange(4):
            case 0:
                around = self.conv(x, 3, 1, [1] * (2 * self.rank))
            case 1:
                kept = {"kernel_shape": [3] * self.rank, "auto_pad": "SAME_UPPER"}
                around = self.add("MaxPool", [x], **kept)
            case 2:
                around = self.conv(x, 5, 1, [2] * (2 * self.rank))
            case _:
                half = self.add("Concat", [x, x], axis=2)
                two = self.known(np.array([2]))
                zero, end = self.known(np.array([0])), self.known(np.array([2**62]))
                around = self.add("Slice", [half, zero, end, two, two])
        return self.add("Add", [x, around])

    def model(self) -> ModelProto:
        for _ in range(self.rng.randint(2, 5)):
            self.last = self.layer(self.last)
            if self.rng.random() < 0.5:
                self.last = self.joined(self.last)
        names = ("n", "m")[: self.rank]
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, *names])
        y = helper.make_tensor_value_info(self.last, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "stack", [x], [y], self.weights)
        opsets = [helper.make_opsetid("", 18)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def hold(seeds: range, session: Session) -> None:
    left_out = 0
    for seed in seeds:
        try:
            check(Stack(seed).model(), session, (19, 24, 31, 33, MOST))
        except onnxruntime_errors.RuntimeException:  # some pads of AveragePool
            left_out += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
    assert left_out <= len(seeds) // 10


def test_stacks(local: Session) -> None:
    hold(range(25), local)


@pytest.mark.differential
def test_many_stacks(local: Session) -> None:
    hold(range(25, 3000), local)
