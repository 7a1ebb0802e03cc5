"""Single layers, and a few in a row, of a dimension n of any size, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, parser

import mlc_deploy as mlc
from mlc_deploy.frontend import from_onnx
from mlc_rpc import Session
from tests.onnx_models import reference
from tests.sessions import TARGETS, aarch64, armv7, board_named, boards_in_turn, local

__all__ = ["aarch64", "armv7", "local"]  # fixtures

MOST = 40
rng = np.random.default_rng(3)

TABLE = f"Constant <value = float[64] {{{', '.join(map(str, range(64)))}}}> ()"
ROW = "float[3, n] x"
TEXTS = {
    "all sorted": f"""({ROW}) => (float[3, n] y, int64[3, n] i) {{
        s = Shape <start = 1> (x)  y, i = TopK(x, s) }}""",
    "different numbers": """(float[n] x) => (float[a] y, int64[a] i, int64[n] j, int64[a] k) {
        y, i, j, k = Unique(x) }""",
    "a table's rows behind n": f"""({ROW}) => (float[a] y) {{
        s = Shape <start = 1> (x)  t = {TABLE}  e = Constant <value = int64[1] {{64}}> ()
        p = Slice(t, s, e)  y = Relu(p) }}""",
    "halves": f"""({ROW}) => (float[3, a] y, float[3, b] z) {{
        y, z = Split <axis = 1, num_outputs = 2> (x) }}""",
    "backwards by two": f"""({ROW}) => (float[3, a] y) {{
        b = Constant <value = int64[1] {{-1}}> ()  e = Constant <value = int64[1] {{-9999}}> ()
        i = Constant <value = int64[1] {{1}}> ()  t = Constant <value = int64[1] {{-2}}> ()
        y = Slice(x, b, e, i, t) }}""",
    "differences": f"""({ROW}) => (float[3, a] y) {{
        i = Constant <value = int64[1] {{1}}> ()  l = Constant <value = int64[1] {{-1}}> ()
        o = Constant <value = int64[1] {{0}}> ()  s = Shape <start = 1> (x)
        a = Slice(x, i, s, i)  b = Slice(x, o, l, i)  y = Sub(a, b) }}""",
    "filled up to fours": f"""({ROW}) => (float[3, a] y) {{
        k = Constant <value = int64[1] {{4}}> ()  s = Shape <start = 1> (x)
        r = Mod(s, k)  g = Sub(k, r)  d = Mod(g, k)
        o = Constant <value = int64[1] {{0}}> ()  p = Concat <axis = 0> (o, o, o, d)
        y = Pad(x, p) }}""",
    "every second, same pads": """(float[1, 1, n, 5] x) => (float[1, 1, a, 3] y) {
        k = Constant <value = float[1, 1, 3, 3] {1, 2, 3, 4, 5, 6, 7, 8, 9}> ()
        y = Conv <auto_pad = "SAME_UPPER", strides = [2, 2]> (x, k) }""",
    "triangle": """(float[2, n, n] x) => (float[2, n, n] y) { y = Trilu(x) }""",
    "identity": """(float[n, 7] x) => (float[n, 7] y) { y = EyeLike <k = 1> (x) }""",
}


def model(name: str) -> ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 19]> g {TEXTS[name]}')


@pytest.mark.parametrize(("name", "board"), boards_in_turn(TEXTS))
def test_any_size(name: str, board: str, request: pytest.FixtureRequest) -> None:
    session: Session = board_named(request, board)
    proto = model(name)
    module = session.load(mlc.compile(from_onnx(proto, dims={"n": f"<={MOST}"}), TARGETS[board]))
    for size in (MOST, 1, 2, 7, MOST - 1):
        given = {}
        for info in proto.graph.input:
            shape = [d.dim_value or size for d in info.type.tensor_type.shape.dim]
            given[info.name] = rng.integers(-4, 5, shape).astype(np.float32)
        found = module.run(given)
        for output, right in reference(proto, given).items():
            assert found[output].shape == right.shape, size
            np.testing.assert_allclose(
                found[output], right, 1e-4, 1e-4, err_msg=f"{output}, {size}"
            )
    module.close()


def test_one_element_is_reflected_in_itself(local: Session) -> None:
    text = f"""({ROW}) => (float[3, a] y) {{
        p = Constant <value = int64[4] {{0, 2, 0, 1}}> ()  y = Pad <mode = "reflect"> (x, p) }}"""
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 19]> g {text}')
    module = local.load(mlc.compile(from_onnx(proto, dims={"n": f"<={MOST}"}), "host"))
    x = np.arange(3, dtype=np.float32).reshape(3, 1)
    np.testing.assert_array_equal(module.run({"x": x})["y"], np.repeat(x, 4, 1))
    module.close()
