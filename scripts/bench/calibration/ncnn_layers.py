"""Runs in the emulator: one inference of ncnn with a mark before and after each layer.

    python3 ncnn_layers.py MODEL.param WEIGHTS.bin CxHxW

The marks are system calls that QEMU's plugin sees (device_runtime/qemu_plugin/count.c). Loading has
arranged the weights before. Prints the type of each layer that was marked.
"""

import ctypes
import sys
from pathlib import Path

import ncnn  # type: ignore[import-not-found]

MARK, BEGIN, END, CALIBRATION = 4242, 1, 2, 0xFFFFFFFF
syscall = ctypes.CDLL(None).syscall


def mark(tag: int, index: int) -> None:
    no_stack = 0  # that caches pass over
    syscall(*map(ctypes.c_long, (MARK, tag, index, no_stack)))


param, weights, shape = sys.argv[1], sys.argv[2], [int(n) for n in sys.argv[3].split("x")]
net = ncnn.Net()
net.opt.num_threads, net.opt.use_vulkan_compute = 1, False
assert net.load_param(param) == 0 and net.load_model(weights) == 0
rows = [line.split() for line in Path(param).read_text().splitlines()[2:]]
layers = [(row[0], row[4 + int(row[2])]) for row in rows if row[0] not in ("Input", "Split")]
x = ncnn.Mat(*reversed(shape))
x.fill(0.0)


mark(BEGIN, CALIBRATION)
mark(END, CALIBRATION)
extractor = net.create_extractor()
extractor.input("data", x)
for index, (_, blob) in enumerate(layers):
    mark(BEGIN, index)
    status, made = extractor.extract(blob, 1)  # as the next layer takes it, not converted
    mark(END, index)
    assert status == 0, blob
    del made
print(*(kind for kind, _ in layers))
