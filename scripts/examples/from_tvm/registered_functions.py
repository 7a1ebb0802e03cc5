"""env.linear and env.relu are registered from Python; compiled and registered calls mix.

python scripts/examples/from_tvm/registered_functions.py [BOARD]
"""

# mypy: disable-error-code="valid-type, no-untyped-def, attr-defined, type-var, arg-type"

import numpy as np
from running import Board, command, connected

import mlc_deploy as mlc
from mlc_deploy import graph
from mlc_deploy.board.connect import target_of
from mlc_deploy.script import graph as R
from mlc_deploy.script import ir as I
from mlc_deploy.script import tir as T


@mlc.register_func("env.linear", override=True)
def linear(x, w, b, out):
    np.matmul(x, w.T, out=out)
    out += b


@mlc.register_func("env.relu", override=True)
def relu(x, out):
    np.maximum(x, 0, out=out)


@I.ir_module
class Mixture:
    @T.prim_func
    def relu0(x: T.Buffer((1, 16), "float32"), y: T.Buffer((1, 16), "float32")):
        for i, j in T.grid(1, 16):
            with T.block("Y"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = T.max(x[vi, vj], T.float32(0))

    @R.function
    def main(
        x: R.Tensor((1, 24), "float32"),
        w0: R.Tensor((16, 24), "float32"),
        b0: R.Tensor((16,), "float32"),
        w1: R.Tensor((4, 16), "float32"),
        b1: R.Tensor((4,), "float32"),
    ):
        with R.dataflow():
            lv0 = R.call_dps_packed("env.linear", (x, w0, b0), R.Tensor((1, 16), "float32"))
            lv1 = R.call_tir(Mixture.relu0, (lv0,), R.Tensor((1, 16), "float32"))
            lv2 = R.call_dps_packed("env.linear", (lv1, w1, b1), R.Tensor((1, 4), "float32"))
            out = R.call_dps_packed("env.relu", (lv2,), R.Tensor((1, 4), "float32"))
            R.output(out)
        return out


SHAPES = {"w0": (16, 24), "b0": (16,), "w1": (4, 16), "b1": (4,)}
PARAMS = {
    name: np.random.default_rng(n).normal(size=shape).astype(np.float32)
    for n, (name, shape) in enumerate(SHAPES.items())
}


def expected(x: np.ndarray) -> np.ndarray:
    y = np.maximum(x @ PARAMS["w0"].T + PARAMS["b0"], 0) @ PARAMS["w1"].T + PARAMS["b1"]
    return np.asarray(np.maximum(y, 0))


def main(board: Board = "local://") -> None:
    bound = graph.bind_params(Mixture, PARAMS)
    x = np.random.default_rng(9).normal(size=(1, 24)).astype(np.float32)
    with connected(board) as session:
        ex = mlc.compile(bound, target_of(session.device))
        vm = mlc.VirtualMachine(ex, session)
        np.testing.assert_allclose(vm["main"](x), expected(x), rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    command(main)
