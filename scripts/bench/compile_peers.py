"""How long a cold compile takes, beside TVM 0.27 and IREE, one model after the other in one run.

    python scripts/bench/compile_peers.py [MODEL ...] [--no-peers] [--repeat N] [--json FILE]

A model is one of scripts/bench/models.py or an .onnx file; without any, all architectures. Each is
compiled for aarch64 by a process of its own, from the file to the object:

    ours        `mlc-deploy MODEL --board none` with an empty cache of kernels
    cached      the same once more, with the cache that it filled
    TVM         the importer of relax, its pipeline "zero" and tvm.compile, for a cortex-a72
    IREE        iree-import-onnx and iree-compile at O3, for a cortex-a72

Figures are seconds by the clock, and in brackets seconds of all cores, of the process and of those
that it started: a busy machine disturbs these less. The least of N runs (default: 1). TVM and IREE
come from PyPI into environments of their own in the user's cache. Python's bytecode is compiled
before the clock runs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from mlc_deploy.driver.cache import user_folder  # noqa: E402
from tests.models.architectures import ARCHITECTURES, NAMES, model_and_inputs  # noqa: E402
from tests.models.quantized import ENDING, quantized_model  # noqa: E402

PEERS = {  # what is installed, by the peer's name
    "TVM": ("apache-tvm==0.27.*", "onnx", "numpy"),
    "IREE": ("iree-base-compiler[onnx]==3.*", "numpy"),
}
TVM = """
import sys
import onnx, tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx
module = from_onnx(onnx.load(sys.argv[1]), keep_params_in_input=False)
target = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"})
with target:
    tvm.compile(relax.get_pipeline("zero")(module), target)
"""
IREE = (
    "--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-triple=aarch64-unknown-linux-gnu",
    "--iree-llvmcpu-target-cpu=cortex-a72", "--iree-opt-level=O3",
)  # fmt: skip
COLUMNS = ("ours", "cached", *PEERS)
MOST_SECONDS = 1800  # of one compile


@dataclass(frozen=True)
class Cost:
    """Of one compile: seconds by the clock, and of all cores."""

    wall_s: float
    cores_s: float

    def __str__(self) -> str:
        return f"{self.wall_s:.1f} ({self.cores_s:.1f})"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--no-peers", action="store_true", help="time this compiler alone")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each (default: 1)")
    parser.add_argument("--json", type=Path, help="write the figures to FILE")
    given = parser.parse_args()
    known = (*NAMES, *(f"{name}{ENDING}" for name in ARCHITECTURES))
    for name in given.models:
        if name not in known and not name.endswith(".onnx"):
            parser.error(f"no model '{name}'; there are {', '.join(known)}, and .onnx files")
    peers = {} if given.no_peers else {peer: environment(peer) for peer in PEERS}
    print(f"{'model':<24}" + "".join(f"{column:>16}" for column in COLUMNS))
    found: dict[str, dict[str, Cost | None]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in given.models or ARCHITECTURES:
            file = saved(name, Path(folder))
            runs = [costs(file, peers) for _ in range(given.repeat)]
            least = {column: lowest([run[column] for run in runs]) for column in COLUMNS}
            found[Path(name).stem] = least
            cells = "".join(f"{least[column] or '-'!s:>16}" for column in COLUMNS)
            print(f"{Path(name).stem:<24}{cells}", flush=True)
    if given.json:
        rows = {n: {c: cost and asdict(cost) for c, cost in r.items()} for n, r in found.items()}
        given.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


def saved(name: str, folder: Path) -> Path:
    """The model's file."""
    if name.endswith(".onnx"):
        return Path(name)
    file = folder / f"{name}.onnx"
    onnx.save(
        quantized_model(name)[0] if name.endswith(ENDING) else model_and_inputs(name)[0], file
    )
    return file


def costs(file: Path, peers: Mapping[str, Path]) -> dict[str, Cost | None]:
    """What each compiler costs, None for one that fails or is left out."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours = [sys.executable, "-m", "mlc_deploy.cli"]
        settings = {**os.environ, "MLC_CACHE_DIR": str(folder / "cache")}
        settings.pop("PYTHONDONTWRITEBYTECODE", None)
        subprocess.run([*ours, "--help"], env=settings, stdout=subprocess.DEVNULL, check=True)
        compiled = [*ours, str(file), "--target", "aarch64", "--board", "none"]
        made: dict[str, Cost | None] = dict.fromkeys(COLUMNS)
        made |= {column: cost([compiled], settings) for column in ("ours", "cached")}
        apart = {"PATH": os.environ["PATH"], "HOME": str(Path.home())}
        if python := peers.get("TVM"):
            made["TVM"] = cost([[str(python), "-c", TVM, str(file)]], apart)
        if python := peers.get("IREE"):
            mlir, module = folder / "model.mlir", folder / "model.vmfb"
            steps = [
                [str(python.with_name("iree-import-onnx")), str(file), "-o", str(mlir)],
                [str(python.with_name("iree-compile")), *IREE, str(mlir), "-o", str(module)],
            ]
            made["IREE"] = cost(steps, apart)
    return made


def cost(commands: Sequence[Sequence[str]], settings: Mapping[str, str]) -> Cost | None:
    """Of commands one after the other; None where one fails, which is said."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    for command in commands:
        done = subprocess.run(
            command, env=settings, capture_output=True, text=True, timeout=MOST_SECONDS
        )
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()[-1:]
            print(f"{Path(command[0]).name} failed: {' '.join(said)[-200:]}", file=sys.stderr)
            return None
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cores = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(wall, cores)


def lowest(runs: Sequence[Cost | None]) -> Cost | None:
    """The least of each figure."""
    made = [run for run in runs if run is not None]
    if not made:
        return None
    return Cost(min(run.wall_s for run in made), min(run.cores_s for run in made))


def environment(peer: str) -> Path:
    """The Python of an environment that has the peer, made where there is none."""
    folder = user_folder() / f"compile-peer-{peer.lower()}"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        print(f"installing {', '.join(PEERS[peer])} into {folder}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PEERS[peer]], check=True)
        (folder / "ready").touch()
    return python


if __name__ == "__main__":
    sys.exit(main())
