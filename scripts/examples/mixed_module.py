"""Functions from libraries, loops of one's own and the compiler's operators in one module.

A classifier of 784 pixels whose first layer is a registered Python function (of torch where it is
installed, of numpy otherwise), whose activation is a T.prim_func, and whose second layer is
operators of the library. On local:// the registered function works on the board's own memory.

    python scripts/examples/mixed_module.py [BOARD TARGET]
"""

# mypy: disable-error-code="valid-type, no-untyped-def, attr-defined, type-var, arg-type"

import argparse
from typing import Any

import numpy as np

import mlc_deploy as mlc
from mlc_deploy import graph
from mlc_deploy.script import graph as R
from mlc_deploy.script import ir as I
from mlc_deploy.script import tir as T

try:
    import torch

    def linear(x: Any, w: Any, b: Any, out: Any) -> None:
        """out = x wT + b, in place: torch sees the memory of the arrays, by DLPack."""
        x, w, b, out = map(torch.from_dlpack, (x, w, b, out))
        torch.addmm(b, x, w.T, out=out)

except ImportError:

    def linear(x: Any, w: Any, b: Any, out: Any) -> None:
        """out = x wT + b, in place."""
        np.matmul(x, w.T, out=out)
        out += b


mlc.register_func("env.linear", linear, override=True)


@I.ir_module
class Mixed:
    @T.prim_func
    def relu(x: T.Buffer((1, 128), "float32"), y: T.Buffer((1, 128), "float32")):
        for i, j in T.grid(1, 128):
            with T.block("Y"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = T.max(x[vi, vj], T.float32(0))

    @R.function
    def main(
        x: R.Tensor((1, 784), "float32"),
        w0: R.Tensor((128, 784), "float32"),
        b0: R.Tensor((128,), "float32"),
        w1: R.Tensor((10, 128), "float32"),
        b1: R.Tensor((10,), "float32"),
    ):
        with R.dataflow():
            lv0 = R.call_dps_packed("env.linear", (x, w0, b0), R.Tensor((1, 128), "float32"))
            lv1 = R.call_tir(Mixed.relu, (lv0,), R.Tensor((1, 128), "float32"))
            lv2 = R.add(R.dense(lv1, w1, transpose_b=True), b1)
            out = R.softmax(lv2, axis=1)
            R.output(out)
        return out


def parameters(seed: int = 0) -> dict[str, np.ndarray]:
    """Weights as training would give them; float32."""
    rng = np.random.default_rng(seed)
    shapes = {"w0": (128, 784), "b0": (128,), "w1": (10, 128), "b1": (10,)}
    return {name: rng.normal(0, 0.05, shape).astype(np.float32) for name, shape in shapes.items()}


def expected(x: np.ndarray, p: dict[str, np.ndarray]) -> np.ndarray:
    """What the module computes, by numpy."""
    y = np.maximum(x @ p["w0"].T + p["b0"], 0) @ p["w1"].T + p["b1"]
    e = np.exp(y - y.max())
    return np.asarray(e / e.sum())


def main(board_url: str = "local://", target: str = "host") -> None:
    module = graph.bind_params(Mixed, parameters())
    print(module.script())
    x = np.random.default_rng(1).random((1, 784), np.float32)
    with mlc.connect(board_url) as board:
        model = mlc.compile(module, target)
        outputs = board.load(model).run({"x": x})
        np.testing.assert_allclose(outputs["out"], expected(x, parameters()), rtol=1e-4, atol=1e-6)
        print(f"\nthe board agrees with numpy: class {outputs['out'].argmax()}")
        done = mlc.deploy(model, board, {"x": x})
        for layer in done.layers:
            where = "this machine" if layer.on_host else "the board"
            print(f"{layer.name:16} {layer.kernel:24} {layer.median_us:10.1f} us on {where}")
        assert done.ok


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("board", nargs="?", default="local://")
    parser.add_argument("target", nargs="?", default="host")
    arguments = parser.parse_args()
    main(arguments.board, arguments.target)
