"""A model with states, frame by frame: right, and how much a step costs beyond the model.

    python scripts/bench/streams.py [MODEL.onnx] [--board URL] [--frames 10000] [--shape NAME=1,576]
                                    [--const NAME=16000] [--json FILE]

Without a model it is the detector of speech of tests/driver/test_streams.py. Every frame is
compared with onnxruntime, which is given its state by hand. The figures: the largest error, of all
outputs and of the states at the end; microseconds of a step (the median) and of the model on the
board, and the difference; how many pings that is, since a busy machine makes both longer; memory
of this process and of the board's program after the first tenth and at the end. The target for
local:// is less than 150 µs for the difference, and less than 5 pings.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import mlc_deploy as mlc
from mlc_deploy.cli.options import constants, shapes
from mlc_deploy.driver.inputs import draw
from mlc_rpc import Session
from tests.driver.test_streams import voice_activity

Array = NDArray[Any]
STEPS = 3000  # that are timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--board", default="local://")
    parser.add_argument("--frames", type=int, default=10_000)
    parser.add_argument("--shape", action="append", default=[])
    parser.add_argument("--const", action="append", default=[])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.model is None:
            options.model = Path(folder) / "vad.onnx"
            onnx.save(voice_activity(), options.model)
            options.const = options.const or ["sr=16000"]
        with mlc.connect(options.board) as board:
            figures = measure(options, board)
    for name, value in figures.items():
        print(f"{name:<32}{value:>14.6g}")
    if options.json:
        options.json.write_text(json.dumps({str(options.board): figures}, indent=1) + "\n")


def measure(options: argparse.Namespace, board: Session) -> dict[str, float]:
    values = constants(options.const)
    model = mlc.compile(options.model, board.device.machine if board.emulated else "host",
                        shapes=shapes(options.shape), values=values)  # fmt: skip
    begin = dict(model.reference.states)
    if not begin:
        sys.exit(f"{options.model} has no states; try: --state in mlc-deploy says which there are")
    theirs = onnxruntime.InferenceSession(str(options.model), providers=["CPUExecutionProvider"])
    kinds = {i.name: i.type for i in theirs.get_inputs()}
    known = {
        n: np.array(v, "int64" if "int64" in kinds[n] else "float32") for n, v in values.items()
    }
    names = [o.name for o in theirs.get_outputs()]
    params = {p.name: p.type for p in model.reference.params}
    states: dict[str, Array] = {n: np.zeros(params[n].sizes, params[n].dtype) for n in begin}
    module, error, memory = board.load(model), 0.0, list[tuple[int, int]]()
    frame: dict[str, Array] = {}
    for number in range(options.frames):
        frame = {n: draw(n, t.sizes, t.dtype, seed=number)
                 for n, t in params.items() if n not in begin}  # fmt: skip
        found = module.step(frame)
        right = dict(zip(names, theirs.run(None, {**frame, **states, **known}), strict=True))
        error = max(error, *(float(np.abs(found[n] - right[n]).max()) for n in found))
        states = {n: right[end] for n, end in begin.items()}
        if number in (options.frames // 10, options.frames - 1):
            process = board.link.transport.process
            memory.append((resident("self"), resident(process) if process else 0))
    kept = module.save_state()
    took: list[float] = []
    pings: list[float] = []
    for _ in range(STEPS):  # by turns, so that both meet the same machine
        began = time.perf_counter()
        module.step(frame)
        took.append(time.perf_counter() - began)
        pings.append(board.ping())
    step, ping = (statistics.median(each) * 1e6 for each in (took, pings))
    alone = module.time(frame, number=10, repeat=10).median * 1e6
    return {
        "frames": options.frames,
        "largest error of outputs": error,
        "largest relative error of states": max(
            float((np.abs(kept[n] - s) / max(np.abs(s).max(), 1e-30)).max())
            for n, s in states.items()
        ),
        "step, µs": step,
        "model on the board, µs": alone,
        "beyond the model, µs": step - alone,
        "beyond the model, pings": (step - alone) / ping,
        "own memory grew, kB": memory[-1][0] - memory[0][0],
        "board's memory grew, kB": memory[-1][1] - memory[0][1],
    }


def resident(process: int | str) -> int:
    """Kilobytes of a process' memory that are there."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


if __name__ == "__main__":
    main()
