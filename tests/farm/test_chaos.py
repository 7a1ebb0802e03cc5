"""A tuning run on a farm of which scheduler, members, boards, builders and client are killed at
random, for `--minutes` (default: 3; the figure that is quoted is of 30):

    scripts/test --only farm tests/farm/test_chaos.py --minutes 30 -s
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from mlc_deploy.tuned import Database
from tests.cli.command import MODELS, Command
from tests.farm.farms import LocalFarm, until, wait_for

pytest.importorskip("distributed")
pytestmark = [
    pytest.mark.farm,
    pytest.mark.skipif(not shutil.which("qemu-aarch64"), reason="no QEMU: apt install qemu-user"),
]
LOCKED_SECONDS = 30.0
A72 = "qemu://cortex-a72"
STEP = 64  # trials that are added when a run ends before the chaos does
MEMBERS = ("one", "two")
KILLED = ("scheduler", "member", "board", "builder", "client")
PROGRAMS = {"board": "qemu-", "builder": "python"}  # of a member's children


def children(of: int, name: str) -> list[int]:
    """The processes that a process started, of programs whose names begin so."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            whose, _, rest = status.read_text().rpartition(")")
            if f"({name}" in whose and int(rest.split()[1]) == of:
                found.append(int(status.parent.name))
    return found


class Chaos:
    def __init__(self, farm: LocalFarm, command: list[str], seed: int) -> None:
        self.farm, self.command, self.chance = farm, command, random.Random(seed)
        self.trials, self.kills = STEP, dict.fromkeys(KILLED, 0)

    def client(self) -> None:
        command = [sys.executable, "-m", "mlc_deploy.cli", *self.command]
        self.farm.start("client", *command, "--trials", str(self.trials))

    def go_on(self) -> None:
        """Starts the client again where it was killed, or with more trials where it ended."""
        process = self.farm.processes.get("client")
        if process is not None and process.poll() is None:
            return
        if process is not None and process.returncode == 0:
            self.trials += STEP
        self.client()

    def strike(self) -> None:
        what = self.chance.choice(list(self.kills))
        match what:
            case "scheduler":
                self.farm.kill("scheduler")
                time.sleep(self.chance.uniform(0.0, 2.0))
                self.farm.start_scheduler()
            case "member":
                name = self.chance.choice(MEMBERS)
                self.farm.kill(name)
                time.sleep(self.chance.uniform(0.0, 2.0))
                self.farm.join(name, A72, A72)
            case "client":
                if "client" not in self.farm.processes:
                    return
                self.farm.kill("client")
            case "board" | "builder":
                member = self.farm.processes[self.chance.choice(MEMBERS)].pid
                found = children(member, PROGRAMS[what])
                if not found:
                    return
                with suppress(ProcessLookupError):
                    os.kill(self.chance.choice(found), signal.SIGKILL)
        self.kills[what] += 1


@pytest.mark.parametrize("seed", [1])
def test_nothing_is_lost_or_doubled(
    seed: int,
    tmp_path: Path,
    mlc_deploy: Command,
    monkeypatch: pytest.MonkeyPatch,
    pytestconfig: pytest.Config,
) -> None:
    monkeypatch.chdir(tmp_path)
    seconds = 60 * pytestconfig.getoption("minutes")
    common = ["tune", str(MODELS / "digits_cnn.onnx"), "--target", "aarch64", "--only", "conv2d",
              "--search", "random", "--batch", "8", "--keep-layouts"]  # fmt: skip
    db = tmp_path / "chaos.jsonl"
    with LocalFarm(tmp_path) as farm:
        on_farm = [*common, "--farm", farm.address, "--board-kind", "emulated-cortex-a72"]
        chaos = Chaos(farm, [*on_farm, "--db", str(db)], seed)
        for name in MEMBERS:
            farm.join(name, A72, A72)
        with farm.connect() as connected:
            wait_for(connected, boards=4, builders=2)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            chaos.go_on()
            time.sleep(chaos.chance.uniform(1.0, 5.0))
            chaos.strike()
        with farm.connect() as connected:
            until(
                lambda: sum(b.state in ("free", "busy") for b in connected.boards()) == 4,
                "all boards serve again",
                LOCKED_SECONDS,
            )
        last = farm.processes.pop("client", None)
        if last is not None:
            last.kill()
            last.wait()
        trials = ["--trials", str(chaos.trials)]
        done = mlc_deploy(*on_farm, "--db", db, *trials)
        assert done.status == 0, done.stderr
    alone = mlc_deploy(*common, "--board", A72, "--db", "alone.jsonl", *trials)
    assert alone.status == 0, alone.stderr
    found, expected = Database(db), Database("alone.jsonl")
    assert not found.notes
    keys = [(r.workload, r.program, r.final) for r in found.records]
    assert len(keys) == len(set(keys))
    assert min(chaos.kills.values()) > 0 or seconds < 100
    costs = {(r.workload, r.program): r.cost for r in expected.records}
    assert {key[:2] for key in keys} == costs.keys()
    ok = [r for r in found.records if r.measured.verdict in ("ok", "emulated")]
    assert all(costs[r.workload, r.program] == r.cost for r in ok)
    assert len(ok) >= 0.95 * len(keys)  # what boards died of twice counts as a crash
    for workload in {key[0] for key in keys}:
        best = [
            min(r.cost for r in db.records if r.workload == workload) for db in (found, expected)
        ]
        assert best[0] <= 1.05 * best[1]
    print(f"\n{chaos.kills} kills, {chaos.trials} trials, {len(keys)} results, {len(ok)} good")
