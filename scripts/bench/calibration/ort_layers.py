"""Runs in the emulator: models by onnxruntime, each once with a mark before and after its run.

    python ort_layers.py FOLDER

The marks are those of ncnn_layers.py. A model ran once before it is counted, as caches are warm
where it is timed.
"""

import ctypes
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort

MARK, BEGIN, END, CALIBRATION = 4242, 1, 2, 0xFFFFFFFF
syscall = ctypes.CDLL(None).syscall


def mark(tag: int, index: int) -> None:
    no_stack = 0  # that caches pass over
    syscall(*map(ctypes.c_long, (MARK, tag, index, no_stack)))


mark(BEGIN, CALIBRATION)
mark(END, CALIBRATION)
options = ort.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
for number, file in enumerate(sorted(Path(sys.argv[1]).glob("*.onnx"))):
    session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    given = {i.name: np.ones(i.shape, np.float32) for i in session.get_inputs()}
    for turn in range(2):
        mark(BEGIN, 2 * number + turn)
        session.run(None, given)
        mark(END, 2 * number + turn)
