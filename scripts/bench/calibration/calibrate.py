"""Fits the cores' figures to published latencies, and says how far off predictions are.

    cd scripts/bench/calibration
    python calibrate.py ROWS.csv             errors, each board left out
    python calibrate.py ROWS.csv --models    ... and each network
    python calibrate.py ROWS.csv --write     ... and writes mlc_targets/calibrated.py
    python calibrate.py --check FILE.csv     errors of rows that were not fitted

Rows have the columns board, cpu, clock_mhz, threads, framework, precision, model and ms. Those of
ncnn are fitted, of cores in mlc_targets/cores.py and networks in counts/ (count.py makes these).
The model is host/mlc_deploy/predict/model.py. The logarithms of its figures are fitted by least
squares that trust outliers less; an error is a share of the truth, as in what is printed. Each
figure has a prior: cores of one kin are alike, a core is near its guess, chips differ a little
(SPREAD). Rows of int8 are predicted, and never fitted. A network has a factor as well, since the
published builds of ncnn are older than the one that was counted: it serves to fit, and to predict
rows of ncnn. No prediction for kernels of ours has one, so it has a narrow prior: what all figures
can explain together, it does not. Errors are printed with and without it.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlc_deploy.predict.model import Work, lines_of, predict
from mlc_targets.cores import LINE_BYTES, Speed, core, site, speed

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from scripts.bench.calibration import networks  # noqa: E402

Floats = NDArray[np.float64]
CALIBRATED = HERE.parents[2] / "targets/mlc_targets/calibrated.py"
NETWORKS = HERE / "networks.json"  # the networks' factors, of the last --write

COLUMNS = ("board", "cpu", "clock_mhz", "threads", "framework", "precision", "model", "ms")
CORES = ("cortex-a7", "cortex-a53", "cortex-a55", "cortex-a57", "cortex-a72", "cortex-a73",
         "cortex-a76", "cortex-a78")  # fmt: skip
# What published tables call boards -> the chip; boards not named here are taken as usual ones.
CHIPS = {
    "Jetson AGX Orin": "tegra234", "Jetson Nano": "tegra210", "Khadas VIM3": "amlogic-a311d",
    "RK3588": "rk3588", "Orange Pi 5": "rk3588", "RK3568": "rk3568", "RK3566": "rk3566",
    "RK3399": "rk3399", "RK3328": "rk3328", "H616": "allwinner-h616",
    "Raspberry Pi 3": "bcm2837", "Raspberry Pi Zero 2": "bcm2710a1", "Raspberry Pi 2": "bcm2836",
    "Raspberry Pi 4": "bcm2711", "Raspberry Pi 5": "bcm2712", "Snapdragon 410": "snapdragon410",
    "i.MX7": "imx7d", "T527": "allwinner-t527", "RDK X3": "sunrise-x3", "RZ/G2L": "rz-g2l",
}  # fmt: skip
# Published as "fp16", and executed in float32: MobileNet takes the Cortex-A76 of this table twice
# as long as the same core at the same clock elsewhere, and its time is that of float32's
# instructions.
IN_FLOAT32 = ("RK3588",)

# What a row's time is computed from; the first FIGURES are of its core.
KINDS = (
    "vector",
    "memory",
    "other",
    "l1_miss",
    "line_ns",
    "pace",
    "rate",
    "network",
    "serial",
    "join",
)
FIGURES = 5
# Chips of one design: they share what is fitted for it.
DESIGNS = {"rk3566": "rk3568"}
REACHED, SERIAL, JOIN = 1.2, 0.05, 5000.0  # where the fit begins
STEP, CLOSE = 1e-4, 1e-4  # of logarithms: to find slopes, and where the fit ends
FAR = 1.0  # an error's logarithm, beyond which it is taken as so large: where the fit begins
SIGMA = (0.08, 0.15)  # a row's own error, as a share: of one thread, of several
TRUSTED = 1.5  # rows beyond so many of it count less
# Standard deviations, in logarithms, of what is fitted from where it begins. Of a core's figures
# the first is known best: data sheets give the width of its vector unit.
SPREAD: dict[str, Any] = {
    "kin": (0.15, 0.6, 0.6, 0.6, 0.5),
    "core": (0.1, 0.2, 0.2, 0.2, 0.25),
    "pace": 0.08, "line": 0.2, "network": 0.03, "rate": 0.3, "reached": 0.5,
    "serial": 0.7, "join": 1.0,
}  # fmt: skip
BOUNDS = 0.07  # of errors left out, so many are beyond each bound of an interval


@dataclass(frozen=True, slots=True)
class Row:
    """A published latency, and the layers that were counted for it."""

    board: str
    core: str
    chip: str
    mhz: float
    threads: int
    precision: str
    network: str
    ms: float

    @property
    def place(self) -> tuple[str, str]:
        """Of what is fitted for a chip: boards whose chip is not known have theirs each."""
        return DESIGNS.get(self.chip, self.chip) or f"? {self.board}", self.core

    @property
    def memory(self) -> str:
        """All cores of a chip share it."""
        return self.place[0]

    @property
    def counted(self) -> str:
        """The core whose kernels ncnn chooses."""
        if self.core == "cortex-a7":
            return "cortex-a7"
        return "cortex-a76" if self.precision == "fp16" or self.dotted else "cortex-a72"

    @property
    def dotted(self) -> bool:
        """int8 on a core that sums up four products at once."""
        return self.precision == "int8" and self.core in ("cortex-a55", "cortex-a76", "cortex-a78")


def read_counts() -> dict[tuple[str, str], dict[str, Floats]]:
    """(core, network) -> a column per figure, a number per layer. `layers` is how often a layer
    starts the threads."""
    found: dict[tuple[str, str], dict[str, Floats]] = {}
    for file in sorted((HERE / "counts").glob("*.csv")):
        with file.open() as opened:
            lines = list(csv.DictReader(opened))
        for name in dict.fromkeys(line["network"] for line in lines):
            own = [line for line in lines if line["network"] == name]
            columns = [key for key in own[0] if key not in ("network", "layer")]
            found[file.stem, name] = {
                key: np.array([float(line[key]) for line in own]) for key in columns
            }
            # A line holds so many layers, that follow each other.
            held = np.array([int(line["layers"]) for line in own])
            starts = np.array(networks.network(name).starts, float)
            found[file.stem, name]["layers"] = np.add.reduceat(starts, np.cumsum(held) - held)
    return found


def read_rows(file: Path, counts: dict[tuple[str, str], Any]) -> list[Row]:
    """Those that this model speaks of. Raises ValueError where the file has other columns."""
    rows = []
    with file.open() as opened:
        reader = csv.DictReader(opened)
        for column in COLUMNS:
            if column not in (reader.fieldnames or ()):
                raise ValueError(f"{file} has no column '{column}'; rows have {', '.join(COLUMNS)}")
        for line in reader:
            own = line["cpu"].split("x ")[-1].split()[0].lower().removesuffix("ae")
            if line["framework"] != "ncnn" or line["precision"] not in ("fp32", "fp16", "int8"):
                continue
            if own not in CORES or "+" in line["cpu"] or not line["threads"]:
                continue
            if "armv7" in line["cpu"] and own != "cortex-a7":
                continue
            chip = next((c for text, c in CHIPS.items() if text in line["board"]), "")
            cores = int(line["cpu"].split("x ")[0])
            precision = line["precision"]
            if precision == "fp16" and line["board"] in IN_FLOAT32:
                precision = "fp32"
            row = Row(
                f"{line['board']} {own}", own, chip, float(line["clock_mhz"]),
                min(int(line["threads"]), cores), precision, line["model"],
                float(line["ms"]),
            )  # fmt: skip
            if row.threads <= 4 and (row.counted, row.network) in counts:
                rows.append(row)
    return rows


class Fit:
    """Rows as arrays, and the figures that fit some of them best.

    A row's time depends on few logarithms (KINDS), each the sum of where it begins and of what is
    fitted for the row's core, chip, network or for all: `members` says which of p these are.
    """

    def __init__(self, rows: Sequence[Row], counts: dict[tuple[str, str], Any]) -> None:
        self.rows = rows
        self.places = sorted({r.place for r in rows})
        self.memories = sorted({r.memory for r in rows})
        self.networks = sorted({r.network for r in rows})
        known = [found for name in CORES if (found := core(name))]
        kins = sorted({c.kin for c in known})
        parts: list[list[Floats]] = [[] for _ in range(6)]
        sizes = []
        for row in rows:
            made = counts[row.counted, row.network]
            last = site(row.chip, row.core).last_kib
            parts[0].append(made["mac"] + made["vector"])
            parts[1].append(made["load"] + made["store"])
            parts[2].append(made["branch"] + made["scalar"])
            parts[3].append(made["l1"])
            parts[4].append(lines_of(made, last, row.threads))
            parts[5].append(made["layers"])
            sizes.append(len(made["mac"]))
        *work, self.layers = (np.concatenate(part) for part in parts)
        self.work = np.array(work)
        self.begin = np.cumsum([0, *sizes[:-1]])
        self.row_of = np.repeat(np.arange(len(rows)), sizes)
        of_core = np.array([CORES.index(r.core) for r in rows])
        self.network = np.array([self.networks.index(r.network) for r in rows])
        self.board = np.array([sorted({r.board for r in rows}).index(r.board) for r in rows])
        self.fitted = np.array([r.precision != "int8" for r in rows])
        self.threads = np.array([float(r.threads) for r in rows])
        self.truth = np.log([r.ms for r in rows])
        self.mhz = np.array([r.mhz for r in rows])[self.row_of]
        self.n = self.threads[self.row_of]
        self.in_order = np.array([c.in_order for c in known])[of_core][self.row_of]
        self.sigma = np.where(self.threads == 1, *SIGMA)
        place = np.array([self.places.index(r.place) for r in rows])
        memory = np.array([self.memories.index(r.memory) for r in rows])
        rate = np.array([site(r.chip, r.core).gb_per_s for r in rows])

        self.first: dict[str, int] = {}  # of what is fitted: where it stands in p
        spread: list[float] = []
        self.base = np.zeros((len(KINDS), len(rows)))
        self.members: list[list[NDArray[np.int64]]] = [[] for _ in KINDS]

        def fitted(
            name: str, kind: str, of_row: NDArray[np.int64], wide: float, count: int = 0
        ) -> None:
            self.first[name] = len(spread)
            self.members[KINDS.index(kind)].append(len(spread) + of_row)
            spread.extend([wide] * max(count, int(of_row.max()) + 1))

        all_rows = np.zeros(len(rows), np.int64)
        self.guess = np.log([c.guess for c in known])
        self.kin = np.array([kins.index(c.kin) for c in known])
        for number, kind in enumerate(KINDS[:FIGURES]):
            self.base[number] = self.guess[of_core, number]
            fitted(f"kin {kind}", kind, self.kin[of_core], SPREAD["kin"][number], len(kins))
            fitted(f"core {kind}", kind, of_core, SPREAD["core"][number], len(CORES))
        fitted("line", "line_ns", place, SPREAD["line"])
        fitted("pace", "pace", place, SPREAD["pace"])
        fitted("rate", "rate", memory, SPREAD["rate"])
        fitted("reached", "rate", all_rows, SPREAD["reached"])
        fitted("network", "network", self.network, SPREAD["network"])
        fitted("serial", "serial", all_rows, SPREAD["serial"])
        fitted("join", "join", all_rows, SPREAD["join"])
        self.base[KINDS.index("rate")] = np.log(rate * REACHED)
        self.base[KINDS.index("serial")] = np.log(SERIAL)
        self.base[KINDS.index("join")] = np.log(JOIN)
        self.spread = np.array(spread)

    def logarithms(self, p: Floats) -> Floats:
        """By KINDS and row."""
        made = self.base.copy()
        for number, parts in enumerate(self.members):
            for part in parts:
                made[number] += p[part]
        return made

    def figures(self, p: Floats) -> Floats:
        """Per core, not in logarithms."""
        columns = [
            self.guess[:, number]
            + p[self.first[f"kin {kind}"] + self.kin]
            + p[self.first[f"core {kind}"] + np.arange(len(CORES))]
            for number, kind in enumerate(KINDS[:FIGURES])
        ]
        made: Floats = np.exp(np.array(columns).T)
        return made

    def times(self, logarithms: Floats) -> Floats:
        """Logarithms of milliseconds, without the networks' factors: the same as `layer_ms` of
        mlc_deploy/predict/model.py."""
        e = dict(zip(KINDS, np.exp(logarithms)[:, self.row_of], strict=True))
        n, alone = self.n, self.n == 1
        terms = (e[kind] * work for kind, work in zip(KINDS, self.work[:4], strict=False))
        computing = sum(terms) * 1e3 / self.mhz
        computing = computing * np.where(alone, 1.0, e["serial"] + (1 - e["serial"]) / n)
        waiting = e["line_ns"] * self.work[4] / n
        took = np.where(self.in_order, computing + waiting, np.hypot(computing, waiting))
        shared = self.work[4] * LINE_BYTES / e["rate"] + self.layers * e["join"] * 1e3 / self.mhz
        took = took + np.where(alone, 0.0, shared)
        ms = np.add.reduceat(took, self.begin) / 1e6
        made: Floats = np.log(ms) + logarithms[KINDS.index("pace")]
        return made

    def predict(self, p: Floats, factors: bool = True) -> Floats:
        """Logarithms of milliseconds, with the networks' factors or without."""
        logarithms = self.logarithms(p)
        made = self.times(logarithms)
        return made + logarithms[KINDS.index("network")] if factors else made

    def change(self, p: Floats) -> Floats:
        """How predictions change with each of p."""
        logarithms, rows = self.logarithms(p), np.arange(len(self.rows))
        made, change = self.times(logarithms), np.zeros((len(self.rows), len(p)))
        for number, kind in enumerate(KINDS):
            moved = logarithms.copy()
            moved[number] += STEP
            slope = (self.times(moved) - made) / STEP if kind not in ("network", "pace") else 1.0
            for part in self.members[number]:
                change[rows, part] += slope
        return change

    def fit(self, use: NDArray[np.bool_], begin: Floats | None = None, turns: int = 30) -> Floats:
        """By Gauss and Newton; what no row speaks of stays where it begins. Never of int8."""
        p, use = np.zeros(len(self.spread)) if begin is None else begin.copy(), use & self.fitted
        for _ in range(turns):
            over = np.exp(np.clip(self.predict(p) - self.truth, -FAR, FAR))  # the truth is 1
            change = (self.change(p) * (over / self.sigma)[:, None])[use]
            off = ((1 - over) / self.sigma)[use]
            trust = 1 / np.maximum(1, np.abs(off) / TRUSTED)
            normal = (change * trust[:, None]).T @ change + np.diag(self.spread**-2)
            step = np.linalg.solve(normal, (change * trust[:, None]).T @ off - p / self.spread**2)
            p = p + np.clip(step, -0.5, 0.5)
            if np.abs(step).max() < CLOSE:
                break
        return p

    def left_out(self, groups: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Errors (logarithms) of rows of each group, fitted without that group: with the networks'
        factors, and without."""
        errors = np.zeros((2, len(self.rows)))
        begin = self.fit(np.ones(len(self.rows), bool))
        for group in np.unique(groups):
            out = groups == group
            p = self.fit(~out, begin)
            for number, factors in enumerate((True, False)):
                errors[number, out] = (self.predict(p, factors) - self.truth)[out]
        return errors[0], errors[1]


def described(errors: Floats, within: float) -> str:
    if not len(errors):
        return "no rows"
    off = np.abs(np.exp(errors) - 1)
    return (f"median {np.median(off):5.1%}, {np.mean(off <= within):4.0%} within {within:.0%}, "
            f"{len(off)} rows")  # fmt: skip


def bounds(errors: Floats) -> tuple[float, float]:
    """What a prediction is multiplied with for the ends of its interval."""
    low, high = np.quantile(-errors, (BOUNDS, 1 - BOUNDS))
    return float(np.exp(low)), float(np.exp(high))


def covered(fit: Fit, errors: Floats, groups: NDArray[np.int64]) -> float:
    """The share of rows whose truth the interval holds that the other groups' errors give."""
    held = 0
    for group in np.unique(groups):
        low, high = bounds(errors[groups != group])
        ratio = np.exp(-errors[groups == group])
        held += int(((ratio >= low) & (ratio <= high)).sum())
    return held / len(errors)


def report(fit: Fit, models: bool) -> Floats:
    """Prints errors with each board left out, and returns those without factors."""
    errors, plain = fit.left_out(fit.board)
    one, four = ((fit.threads == n) & fit.fitted for n in (1, 4))
    print("each board left out, without the networks' factors")
    for number, name in enumerate(sorted({r.board for r in fit.rows})):
        own = fit.board == number
        print(f"  {name:40} 1 thread: {described(plain[own & one], 0.3):42} "
              f"4 threads: {described(plain[own & four], 0.35)}")  # fmt: skip
    for title, found in (("with the networks' factors", errors), ("without", plain)):
        print(f"  {title}: 1 thread: {described(found[one], 0.3)}; "
              f"4 threads: {described(found[four], 0.35)}")  # fmt: skip
    print(f"  interval {bounds(plain[one])}: holds {covered(fit, plain[one], fit.board[one]):.0%}"
          " of rows on boards that it was not made from")  # fmt: skip
    print("int8, of which no row was fitted, each board left out")
    for n, within in ((1, 0.3), (2, 0.35), (4, 0.35)):
        own = (fit.threads == n) & ~fit.fitted
        print(f"  {n} threads: {described(plain[own], within)}")
        for number, name in enumerate(fit.networks):
            if name.endswith("_int8") and n == 1:
                own = one_of = (fit.network == number) & (fit.threads == n)
                print(f"    {name:22} {described(plain[one_of], within)}, all "
                      f"{np.exp(np.median(plain[own])):.2f} times the truth")  # fmt: skip
    if models:
        found, _ = fit.left_out(fit.network)
        print("each network left out")
        for number, name in enumerate(fit.networks):
            print(f"  {name:24} {described(found[(fit.network == number) & one], 0.3)}")
        print(f"  all: 1 thread: {described(found[one], 0.3)}; "
              f"4 threads: {described(found[four], 0.35)}")  # fmt: skip
    return plain


def write(fit: Fit, errors: Floats) -> None:
    """mlc_targets/calibrated.py, and the networks' factors beside this script."""
    p = fit.fit(np.ones(len(fit.rows), bool))
    low, high = bounds(errors[(fit.threads == 1) & fit.fitted])
    cores = "".join(
        f'    "{name}": ({", ".join(f"{x:.4g}" for x in row)}),\n'
        for name, row in zip(CORES, fit.figures(p), strict=True)
    )
    places = ""
    for chip, place in sorted({(row.chip, row.place) for row in fit.rows if row.chip}):
        number, rate = fit.places.index(place), fit.memories.index(place[0])
        own = [
            p[fit.first[what] + index]
            for what, index in (("pace", number), ("line", number), ("rate", rate))
        ]
        figures = ", ".join(f"{np.exp(x):.4g}" for x in own)
        places += f'    ("{chip}", "{place[1]}"): ({figures}),\n'
    serial, join, reached = (
        value * np.exp(p[fit.first[name]])
        for name, value in (("serial", SERIAL), ("join", JOIN), ("reached", REACHED))
    )
    count = int(fit.fitted.sum())
    what = f"Figures of cores and chips, fitted to {count} published latencies of ncnn"
    CALIBRATED.write_text(f'''"""{what}
(its benchmark's table, commit a4d2ea1) by scripts/bench/calibration/calibrate.py, which writes
this.
"""

from __future__ import annotations

# Cycles per vector instruction, per load or store, per other one, per line that the first cache
# fetches; nanoseconds per line from memory.
CORES: dict[str, tuple[float, float, float, float, float]] = {{
{cores}}}

# Of a core on a chip, factors: of its times, of nanoseconds per line, of the rate that is reached.
CHIPS: dict[tuple[str, str], tuple[float, float, float]] = {{
{places}}}

REACHED = {reached:.4g}  # of what memory moves for one core: what threads find they share
SERIAL = {serial:.4g}  # the part of a layer that threads do not share
JOIN = {join:.5g}  # cycles that it takes to start them and to wait for the last
INTERVAL = ({low:.4g}, {high:.4g})  # held {1 - 2 * BOUNDS:.0%} of rows, each board left out
''')
    first = fit.first["network"]
    factors = {
        name: round(float(np.exp(p[first + number])), 4)
        for number, name in enumerate(fit.networks)
        if not name.endswith("_int8")
    }
    NETWORKS.write_text(json.dumps(factors, indent=2) + "\n")


def works(row: Row, counts: dict[tuple[str, str], Any], known: Speed) -> list[Work]:
    """What the row's layers execute, as predictions are made of it."""
    c = counts[row.counted, row.network]
    lines = lines_of(c, known.last_kib, row.threads)
    return [
        Work(int(v), int(m), int(o), int(first), float(last), int(layers))
        for v, m, o, first, last, layers in zip(
            c["mac"] + c["vector"], c["load"] + c["store"], c["branch"] + c["scalar"], c["l1"],
            lines, c["layers"], strict=True,
        )
    ]  # fmt: skip


def check(rows: Sequence[Row], counts: dict[tuple[str, str], Any]) -> None:
    """What mlc_targets/calibrated.py says of rows, held against them."""
    factors = json.loads(NETWORKS.read_text())
    errors, held = [], []
    for row in rows:
        known = speed(row.core, row.chip, row.mhz)
        assert known is not None
        made = predict(works(row, counts, known), known, row.threads)
        factor = factors.get(row.network, 1.0)
        errors.append(float(np.log(made.ms * factor / row.ms)))
        held.append(made.low * factor <= row.ms <= made.high * factor)
        print(f"{row.board:40} {row.network:18} {row.precision} {row.threads} threads: "
              f"{row.ms:8.1f} ms, predicted {made.ms * factor:8.1f}")  # fmt: skip
    threads = np.array([row.threads for row in rows])
    whole = np.array([row.precision == "int8" for row in rows])
    for n, within in ((1, 0.3), (2, 0.35), (4, 0.35)):
        for title, own in (("", ~whole), (", int8", whole)):
            print(
                f"{n} threads{title}: {described(np.array(errors)[(threads == n) & own], within)}"
            )
    if rows:
        print(f"the interval holds {np.mean(held):.0%} of {len(held)} rows")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path, nargs="?")
    parser.add_argument("--check", type=Path, metavar="FILE")
    parser.add_argument("--models", action="store_true", help="leave networks out as well")
    parser.add_argument("--write", action="store_true", help="write the figures")
    given = parser.parse_args()
    file = given.check or given.rows
    if not file:
        parser.error("ROWS.csv or --check FILE.csv")
    counts = read_counts()
    try:
        rows = read_rows(file, counts)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if given.check:
        check(rows, counts)
        return
    fit = Fit(rows, counts)
    plain = report(fit, given.models)
    if given.write:
        write(fit, plain)


if __name__ == "__main__":
    main()
