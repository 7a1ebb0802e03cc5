"""What recurrent layers cost: to compile for 10, 100 and 1,000 steps, and a step beside the same
step written out.

    python scripts/bench/recurrence.py [MODEL ...] [--target aarch64 ...] [--hidden 512]
                                       [--no-steps] [--json FILE]

The models are an LSTM, a GRU and a Loop of an RNN's step over vectors of `hidden` numbers. `whole`
is processor time of a process that compiles one, and of its workers, with an empty cache: the least
of REPEAT. `seconds` is what compiling takes of it, without the start of Python. `step` is how many
instructions an emulated board executes per step, as the difference of two lengths tells; `written
out` the same of a model whose steps stand one after the other in its graph, without a loop. The
exit status is 1 where `whole` differs by more than SAME between lengths or exceeds MOST_SECONDS, or
a step takes more instructions than one that is written out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto
from onnx import helper as h
from onnx import numpy_helper as nh

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

LENGTHS = (10, 100, 1000)
FEW = (5, 15)  # steps; what they take beside each other is what the steps between them take
SAME = 0.10
MOST_SECONDS = 5.0
REPEAT = 3
TARGETS = ("aarch64", "armv7a")
LINE = "{:<8}{:<10}{:>8}{:>8}{:>10}{:>12}{:>8}{:>14}{:>14}{:>8}"
Array = NDArray[Any]


def weights(gates: int, hidden: int) -> dict[str, Array]:
    """Of one direction, as ONNX's layers take them; small, so that states neither grow nor end."""
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> Array:
        return rng.normal(0, hidden**-0.5, shape).astype(np.float32)

    wide = gates * hidden
    return {"w": drawn(1, wide, hidden), "r": drawn(1, wide, hidden), "b": drawn(1, 2 * wide)}


def model(
    nodes: Sequence[NodeProto], steps: int, hidden: int, constants: Mapping[str, Array]
) -> ModelProto:
    """From x [steps, 1, hidden] to y."""
    graph = h.make_graph(
        nodes,
        "recurrence",
        [h.make_tensor_value_info("x", TensorProto.FLOAT, (steps, 1, hidden))],
        [h.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [nh.from_array(value, name) for name, value in constants.items()],
    )
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)


def layer(op: str, gates: int) -> Callable[[int, int], ModelProto]:
    """One of ONNX's recurrent layers."""

    def make(steps: int, hidden: int) -> ModelProto:
        attributes: dict[str, Any] = {"linear_before_reset": 1} if op == "GRU" else {}
        node = h.make_node(op, ["x", "w", "r", "b"], ["y"], hidden_size=hidden, **attributes)
        return model([node], steps, hidden, weights(gates, hidden))

    return make


def loop(steps: int, hidden: int) -> ModelProto:
    """A Loop whose turns are tanh(x[turn] + products of the state), which it collects."""
    state = h.make_tensor_value_info("state", TensorProto.FLOAT, (1, hidden))
    turn = h.make_tensor_value_info("turn", TensorProto.INT64, [])
    going, goes_on = (h.make_tensor_value_info(n, TensorProto.BOOL, []) for n in ("go", "on"))
    ends = [
        h.make_tensor_value_info(n, TensorProto.FLOAT, (1, hidden)) for n in ("fresh", "result")
    ]
    body = h.make_graph(
        [
            h.make_node("Identity", ["go"], ["on"]),
            h.make_node("Gather", ["of_x", "turn"], ["now"]),
            h.make_node("MatMul", ["state", "of_state"], ["product"]),
            h.make_node("Add", ["product", "now"], ["sum"]),
            h.make_node("Tanh", ["sum"], ["fresh"]),
            h.make_node("Identity", ["fresh"], ["result"]),
        ],
        "body", [turn, going, state], [goes_on, *ends],
    )  # fmt: skip
    nodes = [
        h.make_node("MatMul", ["x", "of_input"], ["of_x"]),
        h.make_node("Loop", ["count", "yes", "begin"], ["end", "y"], body=body),
    ]
    return model(nodes, steps, hidden, {**_rnn(hidden), "count": np.array(steps),
                                        "yes": np.array(True)})  # fmt: skip


def _rnn(hidden: int) -> dict[str, Array]:
    own = weights(1, hidden)
    return {
        "of_input": own["w"][0],
        "of_state": own["r"][0],
        "begin": np.full((1, hidden), 0.1, np.float32),
    }


class WrittenOut:
    """Nodes of a graph without a loop, step by step."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        return self.several(op, 1, *inputs, **attributes)[0]

    def several(self, op: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        names = [f"v{len(self.nodes)}_{k}" for k in range(count)]
        self.nodes.append(h.make_node(op, inputs, names, **attributes))
        return names

    def inputs_of_steps(self, steps: int) -> list[str]:
        """What a layer's input adds to the gates of each step, all computed in front."""
        of_x = self("Add", self("MatMul", "x", "w"), "wb")
        return self.several("Split", steps, of_x, axis=0)

    def model(
        self, results: Sequence[str], hidden: int, constants: Mapping[str, Array]
    ) -> ModelProto:
        steps = len(results)
        self.nodes.append(h.make_node("Concat", results, ["y"], axis=0))
        return model(self.nodes, steps, hidden, constants)


def _written_out(gates: int, hidden: int) -> dict[str, Array]:
    """The weights of a layer, as products and sums take them."""
    own, wide = weights(gates, hidden), gates * hidden
    return {
        "w": own["w"][0].T.copy(),
        "r": own["r"][0].T.copy(),
        "wb": own["b"][0, :wide],
        "rb": own["b"][0, wide:],
        "begin": np.full((1, hidden), 0.1, np.float32),
    }


def lstm_out(steps: int, hidden: int) -> ModelProto:
    """Steps of an LSTM, the products of all inputs in front."""
    n, constants = WrittenOut(), _written_out(4, hidden)
    parts = n.inputs_of_steps(steps)
    flat = n("Constant", value=nh.from_array(np.array([1, 4 * hidden])))
    state, cell, results = "begin", "begin", []
    for part in parts:
        product = n("Add", n("MatMul", state, "r"), "rb")
        gates = n("Add", n("Reshape", part, flat), product)
        i, o, f, c = n.several("Split", 4, gates, axis=1)
        kept = n("Mul", n("Sigmoid", f), cell)
        cell = n("Add", kept, n("Mul", n("Sigmoid", i), n("Tanh", c)))
        state = n("Mul", n("Sigmoid", o), n("Tanh", cell))
        results.append(state)
    return n.model(results, hidden, constants)


def gru_out(steps: int, hidden: int) -> ModelProto:
    """Steps of a GRU whose reset gate multiplies the state's product."""
    n, constants = WrittenOut(), _written_out(3, hidden)
    parts = n.inputs_of_steps(steps)
    flat = n("Constant", value=nh.from_array(np.array([1, 3 * hidden])))
    state, results = "begin", []
    for part in parts:
        own_x = n.several("Split", 3, n("Reshape", part, flat), axis=1)
        of_h = n.several("Split", 3, n("Add", n("MatMul", state, "r"), "rb"), axis=1)
        z, r = (n("Sigmoid", n("Add", own_x[k], of_h[k])) for k in (0, 1))
        fresh = n("Tanh", n("Add", own_x[2], n("Mul", r, of_h[2])))
        state = n("Add", fresh, n("Mul", z, n("Sub", state, fresh)))
        results.append(state)
    return n.model(results, hidden, constants)


def loop_out(steps: int, hidden: int) -> ModelProto:
    """Steps of the Loop."""
    n = WrittenOut()
    parts = n.several("Split", steps, n("MatMul", "x", "of_input"), axis=0)
    flat = n("Constant", value=nh.from_array(np.array([1, hidden])))
    state, results = "begin", []
    for part in parts:
        state = n("Tanh", n("Add", n("MatMul", state, "of_state"), n("Reshape", part, flat)))
        results.append(state)
    return n.model(results, hidden, _rnn(hidden))


# The model of some steps and a width, and the same written out.
MODELS = {
    "lstm": (layer("LSTM", 4), lstm_out),
    "gru": (layer("GRU", 3), gru_out),
    "loop": (loop, loop_out),
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--target", action="append", choices=TARGETS)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--no-steps", action="store_true", help="compile only")
    parser.add_argument("--json", type=Path, help="write the figures to FILE")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)  # one, in this process
    options = parser.parse_args(arguments)
    if options.measure:
        name, target, steps = options.measure
        print(json.dumps(measure(name, target, int(steps), options.hidden)))
        return 0
    unknown = [name for name in options.models if name not in MODELS]
    if unknown:
        parser.error(f"no model '{unknown[0]}'; there are {', '.join(MODELS)}")
    print(LINE.format("model", "target", "steps", "whole", "seconds", "object", "calls",
                      "step", "written out", "ratio"))  # fmt: skip
    figures: list[dict[str, Any]] = []
    failed = False
    for name in options.models or MODELS:
        for target in options.target or TARGETS:
            took = []
            for steps in LENGTHS:
                every = [apart(name, target, steps, options.hidden) for _ in range(REPEAT)]
                found = min(every, key=lambda figures: figures["whole"])
                took.append(found["whole"])
                figures.append({"model": name, "target": target, "steps": steps, **found})
                cells = (*(f"{found[key]:.2f}" for key in ("whole", "seconds")),
                         found["object"], found["calls"])  # fmt: skip
                print(LINE.format(name, target, steps, *cells, "", "", ""), flush=True)
            failed |= max(took) > (1 + SAME) * min(took) or max(took) > MOST_SECONDS
            if options.no_steps:
                continue
            ours, out = (per_step(make, target, options.hidden) for make in MODELS[name])
            failed |= ours > out
            figures.append({"model": name, "target": target, "step": ours, "written_out": out})
            cells = (f"{ours:,.0f}", f"{out:,.0f}", f"{ours / out:.3f}")
            print(LINE.format(name, target, "", "", "", "", "", *cells), flush=True)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return int(failed)


def apart(name: str, target: str, steps: int, hidden: int) -> dict[str, Any]:
    """The figures of one compilation in a process of its own, with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, __file__, "--measure", name, target, str(steps), "--hidden",
             str(hidden)],
            env={**os.environ, "MLC_CACHE_DIR": cache}, stdout=subprocess.PIPE, check=True,
        )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure(name: str, target: str, steps: int, hidden: int) -> dict[str, Any]:
    import mlc_deploy as mlc
    from mlc_deploy.frontend import from_onnx

    def seconds() -> float:
        return sum(os.times()[:4])

    made = MODELS[name][0](steps, hidden)
    began = seconds()
    compiled = mlc.compile(from_onnx(made), target)
    return {
        "whole": seconds(),
        "seconds": seconds() - began,
        "object": len(compiled.object_bytes),
        "calls": len(compiled.program.calls),
    }


def per_step(make: Callable[[int, int], ModelProto], target: str, hidden: int) -> float:
    """Instructions that each further step executes, its outputs held against the reference."""
    import mlc_deploy as mlc
    from mlc_deploy.frontend import from_onnx
    from scripts.bench.models import MACHINES

    counts = []
    for steps in FEW:
        given = {"x": np.random.default_rng(1).normal(size=(steps, 1, hidden)).astype(np.float32)}
        compiled = mlc.compile(from_onnx(make(steps, hidden)), target)
        with mlc.connect(MACHINES[target].board) as board:
            done = mlc.deploy(compiled, board, given)
        if not done.ok or done.instructions is None:
            sys.exit(f"{compiled.name} for {target}: the outputs are wrong, or nothing is counted")
        counts.append(done.instructions)
    return (counts[1] - counts[0]) / (FEW[1] - FEW[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
