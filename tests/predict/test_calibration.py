"""scripts/bench/calibration: what is fitted is the model that predicts; rows of others are read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mlc_deploy.predict.model import predict
from mlc_targets import calibrated
from mlc_targets.cores import speed

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "scripts" / "bench" / "calibration"
sys.path.insert(0, str(FOLDER))

import calibrate  # type: ignore[import-not-found]  # noqa: E402

HEADER = "board,cpu,clock_mhz,threads,framework,precision,model,input,ms,source\n"
ROWS = HEADER + (
    "Board A,4x Cortex-A53,1200,1,ncnn,fp32,mobilenet_v2,1x3x224x224,170,here\n"
    "Board A,4x Cortex-A53,1200,4,ncnn,fp32,mobilenet_v2,1x3x224x224,70,here\n"
    "Raspberry Pi 4B,4x Cortex-A72,1800,4,ncnn,fp32,resnet50,1x3x224x224,260,here\n"
    "Raspberry Pi 5,4x Cortex-A76,2400,1,ncnn,int8,mobilenet_int8,1x3x224x224,15,here\n"
    "Board B,4x Cortex-A53,1200,1,other,fp32,mobilenet_v2,1x3x224x224,170,here\n"
    "Board C,4x Cortex-A17,1200,1,ncnn,fp32,mobilenet_v2,1x3x224x224,170,here\n"
)


def read(folder: Path, text: str) -> tuple[list[calibrate.Row], dict[tuple[str, str], object]]:
    file, counts = folder / "rows.csv", calibrate.read_counts()
    file.write_text(text)
    return calibrate.read_rows(file, counts), counts


def test_the_fit_and_the_predictions_are_one_model(tmp_path: Path) -> None:
    rows, counts = read(tmp_path, ROWS)
    fit = calibrate.Fit(rows, counts)
    known = [found for row in rows if (found := speed(row.core, row.chip, row.mhz))]
    kinds = np.array([
        [k.vector, k.memory, k.other, k.l1_miss, k.line_ns, k.pace,
         calibrate.LINE_BYTES / k.least_ns, 1.0, calibrated.SERIAL, calibrated.JOIN]
        for k in known
    ]).T  # fmt: skip
    made = [predict(calibrate.works(row, counts, k), k, row.threads).ms
            for row, k in zip(rows, known, strict=True)]  # fmt: skip
    assert np.exp(fit.times(np.log(kinds))) == pytest.approx(made, rel=1e-9)


def test_groups_of_a_convolution_start_the_threads_each() -> None:
    starts = calibrate.networks.network("alexnet").starts
    assert starts[:4] == [1, 1, 1, 2] and sum(starts) == len(starts) + 3
    assert set(calibrate.networks.network("mobilenet").starts) == {1}  # depthwise
    counts = calibrate.read_counts()
    assert counts["cortex-a72", "alexnet"]["layers"].sum() == sum(starts)


def test_slopes_are_those_of_the_predictions(tmp_path: Path) -> None:
    rows, counts = read(tmp_path, ROWS)
    fit = calibrate.Fit(rows, counts)
    p = np.zeros(len(fit.spread))
    change = fit.change(p)
    for number in range(0, len(p), 7):
        step = np.zeros(len(p))
        step[number] = 1e-4
        slope = (fit.predict(p + step) - fit.predict(p)) / 1e-4
        assert change[:, number] == pytest.approx(slope, abs=1e-6)


def test_rows_that_were_not_fitted_are_checked(tmp_path: Path) -> None:
    rows, _ = read(tmp_path, ROWS)
    assert [(r.board, r.threads, r.precision, r.counted) for r in rows] == [
        ("Board A cortex-a53", 1, "fp32", "cortex-a72"),
        ("Board A cortex-a53", 4, "fp32", "cortex-a72"),
        ("Raspberry Pi 4B cortex-a72", 4, "fp32", "cortex-a72"),
        ("Raspberry Pi 5 cortex-a76", 1, "int8", "cortex-a76"),
    ]
    done = checked(tmp_path / "rows.csv")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 4 + 6 + 1, done.stderr
    assert lines[0].startswith("Board A cortex-a53") and "170.0 ms, predicted" in lines[0]
    assert lines[4].startswith("1 threads: median") and lines[4].endswith("1 rows")
    assert lines[5].startswith("1 threads, int8: median") and lines[6] == "2 threads: no rows"
    assert lines[-1].endswith("of 4 rows")


def test_a_file_of_other_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("board,ms\nA,1\n")
    done = checked(tmp_path / "rows.csv")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"calibrate.py: error: {tmp_path / 'rows.csv'} has no column 'cpu'; rows have "
        "board, cpu, clock_mhz, threads, framework, precision, model, ms"
    )


def checked(file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, FOLDER / "calibrate.py", "--check", file], capture_output=True, text=True
    )
