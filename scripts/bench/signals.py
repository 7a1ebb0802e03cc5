"""What models of long signals cost to compile, and whether they are right.

    python scripts/bench/signals.py [MODEL ...] [--target TARGET] [--samples N ...] [--json FILE]

A WaveNet of PyTorch's layers, torchaudio's Conv-TasNet and wav2vec2, and the wav2vec2 of
transformers, with random weights, as torch.onnx.export writes them (torch, torchaudio, transformers
and onnxscript must be installed). Each is compiled for the target with an empty cache, in a process
of its own: `seconds` are those of the clock from the file to the object, `cpu` is the processor
time of the process and its workers, with the start of Python. Compiled for this machine, its
outputs are held against onnxruntime's: `error` is the largest difference, as a share of the largest
element.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

import mlc_deploy as mlc

SAMPLES = (16_000, 160_000)
BOARD = "local://"
LINE = "{:<16}{:>10}{:>10}{:>10}{:>8}{:>12}{:>12}"
# Compiles a file for a target: the seconds of the clock, calls, and bytes of the object.
COMPILE = """
import sys, time
import mlc_deploy as mlc
begun = time.monotonic()
compiled = mlc.compile(sys.argv[1], sys.argv[2])
print(time.monotonic() - begun, len(compiled.program.calls), len(compiled.object_bytes))
"""


class WaveNet(torch.nn.Module):  # type: ignore[misc]
    """Two stacks of ten gated convolutions, each over two samples twice as far apart as the last's
    (van den Oord et al., 2016)."""

    def __init__(self, channels: int = 32, skipped: int = 64, layers: int = 10) -> None:
        super().__init__()
        conv, each = torch.nn.Conv1d, torch.nn.ModuleList
        far = [2**n for _ in range(2) for n in range(layers)]
        self.first = conv(1, channels, 1)
        self.filters = each(conv(channels, channels, 2, dilation=d) for d in far)
        self.gates = each(conv(channels, channels, 2, dilation=d) for d in far)
        self.onward = each(conv(channels, channels, 1) for _ in far)
        self.skips = each(conv(channels, skipped, 1) for _ in far)
        self.last = torch.nn.Sequential(
            torch.nn.ReLU(), conv(skipped, skipped, 1), torch.nn.ReLU(), conv(skipped, 256, 1)
        )

    def forward(self, x: Any) -> Any:
        x, total = self.first(x), 0
        layers = zip(self.filters, self.gates, self.onward, self.skips, strict=True)
        for kept, gate, onward, skip in layers:
            behind = torch.nn.functional.pad(x, (kept.dilation[0], 0))
            z = torch.tanh(kept(behind)) * torch.sigmoid(gate(behind))
            total = total + skip(z)
            x = x + onward(z)
        return self.last(total)


def conv_tasnet() -> Any:
    import torchaudio

    return torchaudio.models.conv_tasnet_base(num_sources=2)


def wav2vec2() -> Any:
    import torchaudio

    return torchaudio.models.wav2vec2_base()


def wav2vec2_hf() -> Any:
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    return Wav2Vec2Model(Wav2Vec2Config())


# The model, and the shape of a signal in front of its samples.
MODELS: Mapping[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "wavenet": (WaveNet, (1, 1)),
    "conv_tasnet": (conv_tasnet, (1, 1)),
    "wav2vec2": (wav2vec2, (1,)),
    "wav2vec2_hf": (wav2vec2_hf, (1,)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--target", default="llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72")
    parser.add_argument("--samples", type=int, nargs="+", default=SAMPLES)
    parser.add_argument("--json", type=Path, help="write the figures to FILE")
    options = parser.parse_args()
    unknown = [name for name in options.models if name not in MODELS]
    if unknown:
        parser.error(f"no model '{unknown[0]}'; there are {', '.join(MODELS)}")
    print(LINE.format("model", "samples", "seconds", "cpu", "calls", "object kB", "error"))
    figures = []
    for name in options.models or MODELS:
        for samples in options.samples:
            found = {"model": name, "samples": samples, **measure(name, samples, options.target)}
            figures.append(found)
            text = (f"{found['seconds']:.1f}", f"{found['cpu']:.1f}", found["calls"],
                    f"{found['object'] / 1000:.0f}", f"{found['error']:.1e}")  # fmt: skip
            print(LINE.format(name, samples, *text), flush=True)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


def measure(name: str, samples: int, target: str) -> dict[str, Any]:
    torch.manual_seed(0)
    make, front = MODELS[name]
    signal = torch.randn(*front, samples)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MLC_CACHE_DIR"] = f"{folder}/cache"
        file = f"{folder}/{name}.onnx"
        torch.onnx.export(make().eval(), (signal,), file, dynamo=True, verbose=False)
        before = processor_seconds()
        done = subprocess.run(
            [sys.executable, "-c", COMPILE, file, target],
            stdout=subprocess.PIPE, check=True, text=True,
        )  # fmt: skip
        cpu = processor_seconds() - before
        seconds, calls, size = done.stdout.split()
        return {
            "seconds": float(seconds),
            "cpu": cpu,
            "calls": int(calls),
            "object": int(size),
            "error": error(file, signal.numpy()),
        }


def processor_seconds() -> float:
    """Of the processes that this one started, and those that they started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def error(file: str, signal: Any) -> float:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    right = session.run(None, {session.get_inputs()[0].name: signal})
    compiled = mlc.compile(file, "host")
    with mlc.connect(BOARD) as board:
        found = board.load(compiled).run({compiled.reference.params[0].name: signal}, timeout=600)
    pairs = zip(found.values(), right, strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


if __name__ == "__main__":
    main()
