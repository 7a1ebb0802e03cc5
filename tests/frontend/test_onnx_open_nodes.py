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

ROW = "float[3, n] x"
TEXTS = {
    "all sorted": f"""({ROW}) => (float[3, n] y, int64[3, n] i) {{
        s = Shape <start = 1> (x)  y, i = TopK(x, s) }}""",
    "different numbers": """(float[n] x) => (float[a] y, int64[a] i, int64[n] j, int64[a] k) {
        y, i, j, k = Unique(x) }""",
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
            np.testing.assert_allclose(found[output], right, 1e-4, 1e-4, err_msg=f"{output}, {size}")
    module.close()
