"""Fits the cores' figures to published latencies, and says how far off predictions are.

    cd scripts/bench/calibration
    python calibrate.py ROWS.csv             errors, each board left out
    python calibrate.py ROWS.csv --models    ... and each network
    python calibrate.py ROWS.csv --write     writes mlc_targets/calibrated.py
    python calibrate.py --check FILE.csv     errors of rows that were not fitted

Rows have the columns board, cpu, clock_mhz, threads, framework, precision, model and ms. Those of
ncnn are fitted, of cores in mlc_targets/cores.py and networks in counts/ (count.py makes these).
The model is host/mlc_deploy/predict/model.py. Its figures are fitted in logarithms, by least
squares that trust outliers less, each with a prior: cores of one kin are alike, a core is near its
guess, chips differ a little (SPREAD). A network has a factor as well, since the published builds
of ncnn are older than the one that was counted: it serves to fit, and to predict rows of ncnn; no
prediction for kernels of ours has one. Errors are printed with and without it.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlc_targets.cores import LINE_BYTES, core, site

Floats = NDArray[np.float64]
HERE = Path(__file__).resolve().parent
CALIBRATED = HERE.parents[2] / "targets/mlc_targets/calibrated.py"
NETWORKS = HERE / "networks.json"  # the networks' factors, of the last --write

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

FIGURES = 5  # per core: vector, memory, other, l1_miss, line_ns
REACHED, SERIAL, JOIN = 1.2, 0.05, 5000.0  # where the fit begins
SIGMA = (0.08, 0.25)  # a row's own error, in logarithms: of one thread, of several
TRUSTED = 1.5  # rows beyond so many of it count less
# Standard deviations, in logarithms, of what is fitted from where it begins.
SPREAD: dict[str, Any] = {
    "kin": (0.4, 0.6, 0.6, 0.6, 0.5),
    "core": (0.15, 0.2, 0.2, 0.2, 0.25),
    "pace": 0.08, "line": 0.2, "network": 0.12, "rate": 0.3, "reached": 0.5,
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
        return self.chip or f"? {self.board}", self.core

    @property
    def counted(self) -> str:
        """The core whose kernels ncnn chooses."""
        if self.core == "cortex-a7":
            return "cortex-a7"
        return "cortex-a76" if self.precision == "fp16" else "cortex-a72"


def read_counts() -> dict[tuple[str, str], dict[str, Floats]]:
    """(core, network) -> a column per figure, a number per layer."""
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
    return found


def read_rows(file: Path, counts: dict[tuple[str, str], Any]) -> list[Row]:
    """Those that this model speaks of."""
    rows = []
    with file.open() as opened:
        for line in csv.DictReader(opened):
            own = line["cpu"].split("x ")[-1].split()[0].lower().removesuffix("ae")
            if line["framework"] != "ncnn" or line["precision"] not in ("fp32", "fp16"):
                continue
            if own not in CORES or "+" in line["cpu"] or not line["threads"]:
                continue
            if "armv7" in line["cpu"] and own != "cortex-a7":
                continue
            chip = next((c for text, c in CHIPS.items() if text in line["board"]), "")
            cores = int(line["cpu"].split("x ")[0])
            half = line["precision"] == "fp16" and line["board"] not in IN_FLOAT32
            row = Row(
                f"{line['board']} {own}", own, chip, float(line["clock_mhz"]),
                min(int(line["threads"]), cores), "fp16" if half else "fp32", line["model"],
                float(line["ms"]),
            )  # fmt: skip
            if row.threads <= 4 and (row.counted, row.network) in counts:
                rows.append(row)
    return rows


class Fit:
    """Rows as arrays, and the figures that fit some of them best."""

    def __init__(self, rows: Sequence[Row], counts: dict[tuple[str, str], Any]) -> None:
        self.rows = rows
        self.places = sorted({r.place for r in rows})
        self.networks = sorted({r.network for r in rows})
        known = {name: core(name) for name in CORES}
        self.kins = sorted({c.kin for c in known.values() if c})
        parts: list[list[Floats]] = [[], [], [], [], []]
        sizes = []
        for row in rows:
            made = counts[row.counted, row.network]
            last = site(row.chip, row.core).last_kib
            parts[0].append(made["mac"] + made["vector"])
            parts[1].append(made["load"] + made["store"])
            parts[2].append(made["branch"] + made["scalar"])
            parts[3].append(made["l1"])
            parts[4].append(made[f"{last}K"])
            sizes.append(len(made["mac"]))
        self.work = np.array([np.concatenate(part) for part in parts])
        self.begin = np.cumsum([0, *sizes[:-1]])
        self.row_of = np.repeat(np.arange(len(rows)), sizes)
        self.core = np.array([CORES.index(r.core) for r in rows])
        self.place = np.array([self.places.index(r.place) for r in rows])
        self.network = np.array([self.networks.index(r.network) for r in rows])
        self.board = np.array([sorted({r.board for r in rows}).index(r.board) for r in rows])
        self.threads = np.array([float(r.threads) for r in rows])
        self.mhz = np.array([r.mhz for r in rows])
        self.truth = np.log([r.ms for r in rows])
        cores = [known[name] for name in CORES]
        self.kin = np.array([self.kins.index(c.kin) for c in cores if c])
        self.in_order = np.array([c.in_order for c in cores if c])
        self.guess = np.log([c.guess for c in cores if c])
        self.rate = np.array([site(r.chip, r.core).gb_per_s for r in rows])
        self.sigma = np.where(self.threads == 1, *SIGMA)
        n = [len(self.kins) * FIGURES, len(CORES) * FIGURES, *[len(self.places)] * 3,
             len(self.networks), 3]  # fmt: skip
        self.ends = np.cumsum(n)
        self.spread = np.concatenate([
            np.tile(SPREAD["kin"], len(self.kins)), np.tile(SPREAD["core"], len(CORES)),
            np.full(n[2], SPREAD["pace"]), np.full(n[3], SPREAD["line"]),
            np.full(n[4], SPREAD["rate"]), np.full(n[5], SPREAD["network"]),
            [SPREAD["serial"], SPREAD["join"], SPREAD["reached"]],
        ])  # fmt: skip

    def figures(self, p: Floats) -> Floats:
        """Per core, not in logarithms."""
        a, b = self.ends[:2]
        kin, own = p[:a].reshape(-1, FIGURES), p[a:b].reshape(-1, FIGURES)
        made: Floats = np.exp(self.guess + kin[self.kin] + own)
        return made

    def predict(self, p: Floats, networks: bool = True) -> tuple[Floats, Floats]:
        """Logarithms of milliseconds, and how they change with each of p."""
        _, b, c, d, e, f, _ = self.ends
        q = self.figures(p)[self.core][self.row_of]
        pace, line, rate, factor = p[b:c], p[c:d], p[d:e], p[e:f]
        serial, join = SERIAL * np.exp(p[f]), JOIN * np.exp(p[f + 1])
        reached = REACHED * np.exp(p[f + 2]) * self.rate * np.exp(rate)[self.place]
        n, mhz = self.threads[self.row_of], self.mhz[self.row_of]
        terms = q[:, :4].T * self.work[:4] * 1e3 / mhz
        shared = np.where(n > 1, serial + (1 - serial) / n, 1.0)
        computing = terms.sum(0) * shared
        own = q[:, 4] * np.exp(line)[self.place][self.row_of] * self.work[4] / n
        least = np.where(n > 1, self.work[4] * LINE_BYTES / reached[self.row_of], 0.0)
        ordered = self.in_order[self.core][self.row_of]
        waiting = np.where(ordered, own, np.maximum(own, least))
        both = np.where(ordered, computing + waiting, np.hypot(computing, waiting))
        bound = ordered & (both < least)
        both = np.where(bound, least, both)
        starts = np.where(n > 1, join * 1e3 / mhz, 0.0)
        by_computing = np.where(ordered, ~bound, computing / np.maximum(both, 1e-9))
        by_waiting = np.where(ordered, ~bound, waiting / np.maximum(both, 1e-9))
        total = np.add.reduceat(both + starts, self.begin)

        def share(of_layer: Floats) -> Floats:
            made: Floats = np.add.reduceat(of_layer, self.begin) / total
            return made

        change = np.zeros((len(self.rows), len(p)))
        rows = np.arange(len(self.rows))
        waits = share(by_waiting * waiting * (ordered | (own >= least)))
        limit = share(-np.where(ordered, least * bound, by_waiting * waiting * (own < least)))
        each = [share(by_computing * shared * term) for term in terms]
        each += [waits]
        for number, slope in enumerate(each):
            change[rows, self.kin[self.core] * FIGURES + number] = slope
            change[rows, self.ends[0] + self.core * FIGURES + number] = slope
        change[rows, b + self.place] = 1
        change[rows, c + self.place] = waits
        change[rows, d + self.place] = limit
        if networks:
            change[rows, e + self.network] = 1
        slope = terms.sum(0) * np.where(n > 1, serial * (1 - 1 / n), 0.0)
        change[:, f] = share(by_computing * slope)
        change[:, f + 1] = share(starts)
        change[:, f + 2] = limit
        made = np.log(total / 1e6) + pace[self.place]
        return (made + factor[self.network] if networks else made), change

    def fit(self, use: NDArray[np.bool_], turns: int = 30) -> Floats:
        """By Gauss and Newton; what no row speaks of stays where it begins."""
        p = np.zeros(self.ends[-1])
        for _ in range(turns):
            made, change = self.predict(p)
            off, change = (self.truth - made) / self.sigma, change / self.sigma[:, None]
            off, change = off[use], change[use]
            trust = 1 / np.maximum(1, np.abs(off) / TRUSTED)
            normal = (change * trust[:, None]).T @ change + np.diag(self.spread**-2)
            step = np.linalg.solve(normal, (change * trust[:, None]).T @ off - p / self.spread**2)
            p = p + np.clip(step, -0.5, 0.5)
            if np.abs(step).max() < 1e-4:
                break
        return p

    def left_out(self, groups: NDArray[np.int64], networks: bool = True) -> Floats:
        """Errors (logarithms) of rows of each group, fitted without that group."""
        errors = np.zeros(len(self.rows))
        for group in np.unique(groups):
            out = groups == group
            made, _ = self.predict(self.fit(~out), networks)
            errors[out] = (made - self.truth)[out]
        return errors


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


def report(fit: Fit, networks: bool) -> Floats:
    """Prints errors with each board left out, and returns them."""
    errors = fit.left_out(fit.board)
    plain = fit.left_out(fit.board, networks=False)
    print("each board left out")
    for number, name in enumerate(sorted({r.board for r in fit.rows})):
        own = fit.board == number
        one = own & (fit.threads == 1)
        four = own & (fit.threads == 4)
        print(f"  {name:40} 1 thread: {described(errors[one], 0.3):42} "
              f"4 threads: {described(errors[four], 0.35)}")  # fmt: skip
    for title, found in (("with the networks' factors", errors), ("without", plain)):
        print(f"  {title}: 1 thread: {described(found[fit.threads == 1], 0.3)}; "
              f"4 threads: {described(found[fit.threads == 4], 0.35)}")  # fmt: skip
    one = fit.threads == 1
    print(f"  interval {bounds(errors[one])}: holds {covered(fit, errors[one], fit.board[one]):.0%}"
          " of rows on boards that it was not made from")  # fmt: skip
    if networks:
        found = fit.left_out(fit.network)
        print("each network left out")
        for number, name in enumerate(fit.networks):
            print(f"  {name:24} {described(found[(fit.network == number) & one], 0.3)}")
        print(f"  all: 1 thread: {described(found[one], 0.3)}; "
              f"4 threads: {described(found[fit.threads == 4], 0.35)}")  # fmt: skip
    return plain


def write(fit: Fit, errors: Floats) -> None:
    """mlc_targets/calibrated.py, and the networks' factors beside this script."""
    p = fit.fit(np.ones(len(fit.rows), bool))
    _, b, c, d, e, f, _ = fit.ends
    low, high = bounds(errors[fit.threads == 1])
    cores = "".join(
        f'    "{name}": ({", ".join(f"{x:.4g}" for x in row)}),\n'
        for name, row in zip(CORES, fit.figures(p), strict=True)
    )
    places = "".join(
        f'    ("{chip}", "{name}"): ({", ".join(f"{np.exp(x):.4g}" for x in own)}),\n'
        for (chip, name), *own in zip(fit.places, p[b:c], p[c:d], p[d:e], strict=True)
        if not chip.startswith("?")
    )
    CALIBRATED.write_text(f'''"""Figures of cores and chips, fitted to {len(fit.rows)} latencies
that ncnn publishes (its benchmark's table, commit a4d2ea1): calibrate.py wrote this file.
"""

from __future__ import annotations

# Cycles per vector instruction, per load or store, per other one, per line that the first cache
# fetches; nanoseconds per line from memory.
CORES: dict[str, tuple[float, float, float, float, float]] = {{
{cores}}}

# Of a core on a chip, factors: of its times, of nanoseconds per line, of the rate that is reached.
CHIPS: dict[tuple[str, str], tuple[float, float, float]] = {{
{places}}}

REACHED = {REACHED * np.exp(p[f + 2]):.4g}  # of what memory moves for one core: for all
SERIAL = {SERIAL * np.exp(p[f]):.4g}  # the part of a layer that threads do not share
JOIN = {JOIN * np.exp(p[f + 1]):.5g}  # cycles that it takes to start them and to wait for the last
INTERVAL = ({low:.4g}, {high:.4g})  # held {1 - 2 * BOUNDS:.0%} of rows, each board left out
''')
    factors = dict(zip(fit.networks, np.exp(p[e:f]).round(4).tolist(), strict=True))
    NETWORKS.write_text(json.dumps(factors, indent=2) + "\n")


def check(rows: Sequence[Row], counts: dict[tuple[str, str], Any]) -> None:
    """What mlc_targets/calibrated.py says of rows, held against them."""
    from mlc_deploy.predict.model import Work, predict
    from mlc_targets.cores import speed

    factors = json.loads(NETWORKS.read_text())
    errors, held = [], []
    for row in rows:
        known = speed(row.core, row.chip, row.mhz)
        assert known is not None
        c = counts[row.counted, row.network]
        works = [
            Work(int(v), int(m), int(o), int(f), int(last))
            for v, m, o, f, last in zip(
                c["mac"] + c["vector"], c["load"] + c["store"], c["branch"] + c["scalar"], c["l1"],
                c[f"{known.last_kib}K"], strict=True,
            )
        ]  # fmt: skip
        made = predict(works, known, row.threads)
        factor = factors.get(row.network, 1.0)
        errors.append(float(np.log(made.ms * factor / row.ms)))
        held.append(made.low * factor <= row.ms <= made.high * factor)
        print(f"{row.board:40} {row.network:18} {row.precision} {row.threads} threads: "
              f"{row.ms:8.1f} ms, predicted {made.ms * factor:8.1f}")  # fmt: skip
    threads = np.array([row.threads for row in rows])
    for n, within in ((1, 0.3), (2, 0.35), (4, 0.35)):
        print(f"{n} threads: {described(np.array(errors)[threads == n], within)}")
    print(f"the interval holds {np.mean(held):.0%} of {len(held)} rows")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path, nargs="?")
    parser.add_argument("--check", type=Path, metavar="FILE")
    parser.add_argument("--models", action="store_true", help="leave networks out as well")
    parser.add_argument("--write", action="store_true", help="write the figures")
    given = parser.parse_args()
    counts = read_counts()
    if given.check:
        check(read_rows(given.check, counts), counts)
    elif given.rows:
        fit = Fit(read_rows(given.rows, counts), counts)
        plain = report(fit, given.models)
        if given.write:
            write(fit, plain)
    else:
        parser.error("ROWS.csv or --check FILE.csv")


if __name__ == "__main__":
    main()
