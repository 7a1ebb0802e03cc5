"""What ncnn executes per layer of the published networks, counted in QEMU: counts/*.csv.

    python scripts/bench/calibration/count.py ROOT SITE --cpu cortex-a72 > counts/cortex-a72.csv

ROOT is a folder with a Linux of the CPU's kind that has Python (unpacked Debian packages: python3,
libstdc++6, libgomp1, libffi8, zlib1g), SITE a folder in which ncnn's wheel for it is unpacked. The
counts here are of ncnn 1.0.20261020 under QEMU 7.2. Neither is needed to fit: calibrate.py reads
the counts. Eight minutes of one core for cortex-a72, as long for cortex-a76 (where ncnn computes in
float16), and for cortex-a7, whose machine is "arm".

A row is a layer: instructions by class, then lines fetched by the first cache and by each of the
alternatives for the next (device_runtime/qemu_plugin/cache.h). Layers below a two-hundredth of a
network's instructions are added to the one before them; `layers` says how many a row holds.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from mlc_deploy.board.runtime_files import counting_plugin
from mlc_rpc.counters import CLASSES, parse_records, per_call
from mlc_targets.caches import caches_of, caches_option
from mlc_targets.cores import core

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from scripts.bench.calibration import networks  # noqa: E402

SMALL = 200
MOST_WEIGHTS = 1 << 30  # bytes: of zeros, that a file system keeps as a hole


def count(name: str, cpu: str, root: Path, site: Path, folder: Path) -> list[list[str | int]]:
    """One row per layer of the network."""
    made, known = networks.network(name), core(cpu)
    assert known is not None
    param, weights, marks = folder / f"{name}.param", folder / "weights", folder / f"{name}.marks"
    param.write_text(made.text())
    with weights.open("wb") as file:
        file.truncate(MOST_WEIGHTS)
    caches = caches_of(known.l1_kib)
    machine = "arm" if cpu == "cortex-a7" else "aarch64"
    plugin = f"{counting_plugin()},out={marks},caches={caches_option(caches)}"
    command: list[str | Path] = [f"qemu-{machine}", "-cpu", cpu, "-L", root, "-plugin", plugin,
               root / "usr/bin/python3", HERE / "ncnn_layers.py", param, weights,
               "x".join(map(str, made.shape))]  # fmt: skip
    env = os.environ | {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    names = [cache.name for cache in caches]
    calls = per_call(parse_records(marks.read_bytes(), len(names)), names)
    rows: list[list[str | int]] = []
    total = sum(call.total for call in calls)
    for kind, call in zip(done.stdout.split(), calls, strict=True):
        figures = [max(0, n) for n in (*call.by_class.values(), *call.misses.values())]
        if rows and call.total * SMALL < total:
            added = (1, *figures)
            rows[-1][2:] = [int(a) + b for a, b in zip(rows[-1][2:], added, strict=True)]
        else:
            rows.append([name, kind, 1, *figures])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("site", type=Path)
    parser.add_argument("--cpu", required=True)
    parser.add_argument("--only", nargs="*", default=networks.names())
    given = parser.parse_args()
    known = core(given.cpu)
    if known is None:
        parser.error(f"nothing is known of {given.cpu} (mlc_targets/cores.py)")
    behind = [cache.name for cache in caches_of(known.l1_kib)[1:]]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["network", "layer", "layers", *CLASSES, "l1", *behind])
    with tempfile.TemporaryDirectory() as folder:
        for name in given.only:
            writer.writerows(count(name, given.cpu, given.root, given.site, Path(folder)))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
