"""An MLP as a module: PrimFuncs for any shape, called from a graph for any batch. It is bound to a
batch of 1 and to one of 32, and its text reads back as the same module.

python scripts/examples/from_tvm/relax_mlp.py [BOARD]
"""

# mypy: disable-error-code="valid-type, no-untyped-def, attr-defined, type-var, arg-type, call-arg"
# mypy: disable-error-code="untyped-decorator"

import numpy as np
from running import Board, command, connected

import mlc_deploy as mlc
from mlc_deploy import graph
from mlc_deploy.board.connect import target_of
from mlc_deploy.script import from_script
from mlc_deploy.script import graph as R
from mlc_deploy.script import ir as I
from mlc_deploy.script import tir as T


@I.ir_module
class MLP:
    @T.prim_func(private=True)
    def relu0(x: T.handle, y: T.handle):
        n, m = T.int64(), T.int64()
        X = T.match_buffer(x, (n, m), "float32")
        Y = T.match_buffer(y, (n, m), "float32")
        for i, j in T.grid(n, m):
            with T.block("Y"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = T.max(X[vi, vj], T.float32(0))

    @T.prim_func(private=True)
    def linear0(x: T.handle, w: T.handle, b: T.handle, z: T.handle):
        m, n, k = T.int64(), T.int64(), T.int64()
        X = T.match_buffer(x, (n, m), "float32")
        W = T.match_buffer(w, (k, m), "float32")
        B = T.match_buffer(b, (k,), "float32")
        Z = T.match_buffer(z, (n, k), "float32")
        Y = T.alloc_buffer((n, k), "float32")
        for i, j, l in T.grid(n, k, m):
            with T.block("Y"):
                vi, vj, vl = T.axis.remap("SSR", [i, j, l])
                with T.init():
                    Y[vi, vj] = T.float32(0)
                Y[vi, vj] = Y[vi, vj] + X[vi, vl] * W[vj, vl]
        for i, j in T.grid(n, k):
            with T.block("Z"):
                vi, vj = T.axis.remap("SS", [i, j])
                Z[vi, vj] = Y[vi, vj] + B[vj]

    @R.function
    def main(
        x: R.Tensor(("n", 784), "float32"),
        w0: R.Tensor((128, 784), "float32"),
        b0: R.Tensor((128,), "float32"),
        w1: R.Tensor((10, 128), "float32"),
        b1: R.Tensor((10,), "float32"),
    ) -> R.Tensor(("n", 10), "float32"):
        n = T.int64()
        cls = MLP
        with R.dataflow():
            lv0 = R.call_dps_packed("linear0", (x, w0, b0), R.Tensor((n, 128), "float32"))
            lv1 = R.call_tir(cls.relu0, (lv0,), out_sinfo=R.Tensor((n, 128), dtype="float32"))
            out = R.call_tir(cls.linear0, (lv1, w1, b1), out_sinfo=R.Tensor((n, 10), "float32"))
            R.output(out)
        return out


SHAPES = {"w0": (128, 784), "b0": (128,), "w1": (10, 128), "b1": (10,)}
PARAMS = {
    name: np.random.default_rng(n).normal(0, 0.05, shape).astype(np.float32)
    for n, (name, shape) in enumerate(SHAPES.items())
}


def expected(x: np.ndarray) -> np.ndarray:
    hidden = np.maximum(x @ PARAMS["w0"].T + PARAMS["b0"], 0)
    return np.asarray(hidden @ PARAMS["w1"].T + PARAMS["b1"])


def main(board: Board = "local://") -> None:
    text = str(MLP)
    assert str(from_script(text)) == text
    bound = graph.bind_params(MLP, PARAMS)
    with connected(board) as session:
        for batch in (1, 32):
            x = np.random.default_rng(9).normal(size=(batch, 784)).astype(np.float32)
            ex = mlc.compile(graph.bind_dims(bound, {"n": batch}), target_of(session.device))
            assert len(ex.program.kernels) == 2  # what follows a product is in its kernel
            found = mlc.VirtualMachine(ex, session)["main"](x)
            np.testing.assert_allclose(found, expected(x), rtol=1e-3, atol=1e-4)


if __name__ == "__main__":
    command(main)
