"""A decoder of the shape of Qwen2-0.5B with weights of 4 bits: memory, bandwidth, prefill.

    python scripts/bench/decoders.py [--board local://] [--tokens 100] [--prompt 128] [--threads 1]
                                     [--layers 24] [--folder FOLDER] [--json FILE]

decoder_model.py writes the model, of random weights. A process of its own compiles it, loads it
onto the board and writes tokens; its largest memory, and that of its children, which compile and
are the board, is looked at. Then, one by one, so that other work on this machine disturbs all
alike:

    decode     a token, of which the weights that it reads in a second are held against `read`
    read       the same bytes read once, into a buffer that stays in the cache
    prefill    a prompt, by the board and by onnxruntime (MatMulNBits at accuracy level 4)
    overhead   of a reply's token: from one to the next, beyond the board's time (a turn's median)

A prompt's figure, and the overhead, are the best of several turns; of a token each call's, and of
reading that of each matrix, are the best of many, added up. Targets: memory under 600 MB, decode at
least 0.9 of read, prefill not slower than onnxruntime, overhead under 300 µs on local://.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import mlc_deploy as mlc
from mlc_deploy.decode.model import IDS, STEP
from mlc_rpc import Session
from mlc_targets.object_format import SPACES
from scripts.bench.decoder_model import Sizes, write_decoder

BUFFER = 1 << 16  # bytes: stays in the first or second cache
TURNS, STEPS = 5, 10
LENGTH = 512
MOST_MEMORY = 600e6  # bytes of the client
LEAST_SHARE = 0.9  # of the bandwidth
MOST_OVERHEAD = 300e-6  # seconds of a token


def prompt_of(count: int, vocabulary: int) -> list[int]:
    return [int(n) for n in np.random.default_rng(1).integers(0, vocabulary, count)]


# ------------------------------------------------------------------------ a process of its own


def deployed(given: argparse.Namespace) -> dict[str, Any]:
    """Compiles, loads and runs; what that took. Saves the model for the process around it."""
    began = time.perf_counter()
    decoder = mlc.load_decoder(given.folder, "host", length=LENGTH)
    compiled = time.perf_counter()
    assert isinstance(decoder.model, mlc.CompiledModel)
    with mlc.connect(given.board) as board:
        prompt = prompt_of(given.prompt, Sizes().vocabulary)
        reply = mlc.generate(decoder, prompt, board, tokens=given.tokens, threads=given.threads)
        tokens = list(reply)
        ran = time.perf_counter()
        memory = reply.summary.memory
    decoder.model.save(given.folder / "model.mlc")
    used = (resource.getrusage(who).ru_maxrss * 1024
            for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))  # fmt: skip
    return {
        "compile_s": compiled - began, "run_s": ran - compiled, "tokens": tokens,
        "weights_bytes": memory.weights, "cache_bytes": memory.cache, "arena_bytes": memory.arena,
        **dict(zip(("client_bytes", "children_bytes"), used, strict=True)),
    }  # fmt: skip


def in_process(given: argparse.Namespace) -> dict[str, Any]:
    own = ["--board", given.board, "--tokens", given.tokens, "--prompt", given.prompt,
           "--threads", given.threads, "--folder", given.folder, "--deploy"]  # fmt: skip
    command = [sys.executable, __file__, *map(str, own)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# ------------------------------------------------------------------------------ one by one


def read_seconds(data: np.ndarray, places: list[tuple[int, int]]) -> np.ndarray:
    """Of each place."""
    buffer, found = np.empty(BUFFER, np.uint8), []
    for begin, size in places:
        began = time.perf_counter()
        for at in range(begin, begin + size, BUFFER):
            piece = data[at : min(at + BUFFER, begin + size)]
            np.copyto(buffer[: len(piece)], piece)
        found.append(time.perf_counter() - began)
    return np.array(found)


def decode_seconds(text: mlc.Text) -> np.ndarray:
    """Of each call of a step of one token."""
    ids = text.model.arguments[IDS]
    run = text._stream.profile({IDS: np.ones((1, 1), ids.dtype)})
    return np.array(run.nanoseconds) / 1e9


def overhead_seconds(text: mlc.Text) -> float:
    """Of host and wire, of a token of a reply, but for the steps that follow none."""
    before, last, found = len(text.steps), 0.0, []
    for _ in text.follow(text.likeliest(), STEPS):
        now = time.perf_counter()
        if len(text.steps) > before + 2:
            found.append(now - last - text.steps[-1].board_s)
        last = now
    return statistics.median(found)


def places_of(text: mlc.Text) -> list[tuple[int, int]]:
    """Where the weights are that a step of one token reads: those of its products."""
    return sorted({
        (arg.offset, arg.size)
        for call in text.model.calls if "dense_blocks" in call.kernel
        for arg in call.args if SPACES[arg.space] == "weights"
    })  # fmt: skip


class Onnxruntime:
    """The same model there, with a prompt's keys and values given back as they come."""

    def __init__(self, file: Path, threads: int, sizes: Sizes) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(
            str(file), options, providers=["CPUExecutionProvider"]
        )
        names = [i.name for i in self._session.get_inputs() if i.name.startswith("past")]
        self._past = {n: np.zeros((1, sizes.kept, 0, sizes.head), np.float32) for n in names}

    def prefill(self, prompt: list[int]) -> tuple[float, np.ndarray]:
        count = len(prompt)
        given = {"input_ids": np.array([prompt]), "attention_mask": np.ones((1, count), np.int64)}
        began = time.perf_counter()
        (logits,) = self._session.run(["logits"], {**given, **self._past})
        return time.perf_counter() - began, logits[0, -1]


def compared(board: Session, given: argparse.Namespace, sizes: Sizes) -> dict[str, Any]:
    decoder = mlc.load_decoder(given.folder / "model.mlc")
    prompt = prompt_of(given.prompt, sizes.vocabulary)
    module = board.load(decoder.model)
    peer = Onnxruntime(given.folder / "model.onnx", given.threads, sizes)
    best: dict[str, Any] = {}
    with mlc.Text(module, threads=given.threads) as text:
        places = places_of(text)
        size = sum(own for _, own in places)
        data = np.frombuffer(decoder.model.weights_bytes, np.uint8).copy()
        for _ in range(TURNS):
            found: dict[str, float] = {}
            text.reset()
            before = len(text.steps)
            text.read(prompt)
            logits = text.logits()
            found["prefill_s"] = sum(step.board_s for step in text.steps[before:])
            found["onnxruntime_s"], right = peer.prefill(prompt)
            for _ in range(STEPS):
                for key, seconds in (("read_s", read_seconds(data, places)),
                                     ("decode_s", decode_seconds(text))):  # fmt: skip
                    best[key] = np.minimum(seconds, best.get(key, np.inf))
            found["overhead_s"] = overhead_seconds(text)
            best |= {key: min(s, best.get(key, np.inf)) for key, s in found.items()}
    best["read_s"] = float(best["read_s"].sum())
    best["decode_s"] = float(best["decode_s"].sum())
    error = float(np.abs(logits - right).max() / np.abs(right).max())
    return {
        **best, "decoded_bytes": size, "error": error,
        "threads": given.threads,
        "share": best["read_s"] / best["decode_s"],
        "faster": best["onnxruntime_s"] / best["prefill_s"],
    }  # fmt: skip


# ------------------------------------------------------------------------------------ the table


def show(record: dict[str, Any]) -> int:
    """1 where a target is missed."""
    table = Table(title="a decoder of 4 bits")
    for column in ("figure", "found", "target"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    size, read = record["decoded_bytes"], record["read_s"]
    rows = (
        ("client, largest", f"{record['client_bytes'] / 1e6:.0f} MB", f"{MOST_MEMORY / 1e6:.0f} MB",
         record["client_bytes"] <= MOST_MEMORY),
        ("its children, largest", f"{record['children_bytes'] / 1e6:.0f} MB",
         f"{MOST_MEMORY / 1e6:.0f} MB", record["children_bytes"] <= MOST_MEMORY),
        ("weights", f"{record['weights_bytes'] / 1e6:.0f} MB", "", True),
        ("read", f"{size / read / 1e9:.2f} GB/s", "", True),
        ("decode", f"{size / record['decode_s'] / 1e9:.2f} GB/s", "", True),
        ("decode of read", f"{record['share']:.2f}", f"{LEAST_SHARE}",
         record["share"] >= LEAST_SHARE),
        ("prefill", f"{record['prefill_s'] * 1e3:.0f} ms", "", True),
        ("prefill of onnxruntime", f"{record['onnxruntime_s'] * 1e3:.0f} ms", "", True),
        ("times as fast", f"{record['faster']:.2f}", "1", record["faster"] >= 1),
        ("overhead of a token", f"{record['overhead_s'] * 1e6:.0f} µs",
         f"{MOST_OVERHEAD * 1e6:.0f} µs", record["overhead_s"] < MOST_OVERHEAD),
        ("largest error of logits", f"{record['error']:.1e}", "", True),
    )  # fmt: skip
    for label, found, target, _ in rows:
        table.add_row(label, found, target)
    Console(width=100).print(table)
    return int(not all(holds for *_, holds in rows))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--board", default="local://")
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--prompt", type=int, default=4 * STEP)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--layers", type=int, default=Sizes().layers)
    parser.add_argument("--folder", type=Path, help="where the model is, or is to be written")
    parser.add_argument("--json", type=Path, help="where to write the record")
    parser.add_argument("--deploy", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.deploy:
        print(json.dumps(deployed(given)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        given.folder = given.folder or Path(folder)
        sizes = Sizes(layers=given.layers)
        if not (given.folder / "model.onnx").exists():
            write_decoder(given.folder, sizes)
        record = in_process(given)
        with mlc.connect(given.board) as board:
            record |= compared(board, given, sizes)
    if given.json:
        given.json.write_text(json.dumps(record, indent=1) + "\n")
    return show(record)


if __name__ == "__main__":
    sys.exit(main())
