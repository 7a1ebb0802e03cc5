"""A whole farm on this machine: Dask's scheduler, members, emulated boards, several users."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mlc_deploy.farm.client import Farm, FarmBoards, matching
from mlc_rpc import Refused
from tests.cli.command import MODELS, Command
from tests.farm.farms import LocalFarm, until, wait_for
from tests.farm.jobs import lose, refuse, span

pytest.importorskip("distributed")
pytestmark = [
    pytest.mark.farm,
    pytest.mark.skipif(not shutil.which("qemu-aarch64"), reason="no QEMU: apt install qemu-user"),
]

DIGITS = MODELS / "digits_cnn.onnx"
A72 = "qemu://cortex-a72"
KIND = "emulated-cortex-a72"
TUNED = ("--target", "aarch64", "--only", "max_pool", "--search", "random", "--trials", "24")


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFarm]:
    with LocalFarm(tmp_path_factory.mktemp("farm")) as made:
        made.join("one", A72, A72)
        made.join("two", A72, "qemu://cortex-a53")
        with made.connect() as farm:
            wait_for(farm, boards=4, builders=2)
        yield made


def boards(farm: Farm) -> FarmBoards:
    return FarmBoards(farm, matching(farm.boards(), KIND, None, "")[0])


def test_the_database_is_that_of_one_machine(
    farm: LocalFarm, mlc_deploy: Command, folder: Path
) -> None:
    common = ("tune", DIGITS, *TUNED, "--batch", "4", "--json", "-")
    alone = mlc_deploy(*common, "--board", A72, "--db", "alone.jsonl")
    shared = mlc_deploy(
        *common, "--farm", farm.address, "--board-kind", KIND, "--db", "shared.jsonl"
    )
    assert (alone.status, shared.status) == (0, 0), shared.stderr
    lines = [sorted(Path(f).read_text().splitlines()) for f in ("alone.jsonl", "shared.jsonl")]
    assert lines[0] == lines[1] and len(lines[0]) > 24
    for key in ("tasks", "layers", "before", "after", "board", "trials", "measured"):
        assert alone.record[key] == shared.record[key], key
    assert shared.record["boards"] == [A72] * 3
    again = mlc_deploy(
        *common, "--farm", farm.address, "--board-kind", KIND, "--db", "shared.jsonl"
    )
    assert again.record["measured"] == 0


def test_a_release_on_all_kinds(farm: LocalFarm, mlc_deploy: Command, folder: Path) -> None:
    other = "emulated-cortex-a53"
    ran = ("test", DIGITS, "--farm", farm.address)
    first = mlc_deploy(*ran, "--kinds", "all", "--output", "base")
    assert first.status == 0, first.stdout + first.stderr
    names = {f"digits_cnn@{kind}.json" for kind in (KIND, other)}
    assert {file.name for file in Path("base").iterdir()} == names
    held = mlc_deploy(*ran, "--kinds", KIND, "--baseline", "base")
    assert held.status == 0 and "no change" in held.stdout and other not in held.stdout
    unknown = mlc_deploy(*ran, "--kinds", "toaster")
    assert unknown.complaint == (
        f"error: the farm has no board of kind 'toaster'\n  in:  {farm.address}\n"
        f"  try: --board-kind {other} or --board-kind {KIND}\n-> 1"
    )


def test_a_model_runs_on_any_board_of_a_kind(
    farm: LocalFarm, mlc_deploy: Command, folder: Path
) -> None:
    here = mlc_deploy(DIGITS, "--board", A72, "--json", "-")
    there = mlc_deploy(DIGITS, "--farm", farm.address, "--board-kind", KIND, "--json", "-")
    assert (here.status, there.status) == (0, 0), there.stderr
    for key in ("instructions", "ok", "target", "outputs"):
        assert here.record[key] == there.record[key], key


def test_the_list_names_kinds_states_and_users(
    farm: LocalFarm, mlc_deploy: Command, folder: Path
) -> None:
    with farm.connect() as connected:
        jobs = [boards(connected).submit(span, 5.0) for _ in range(4)]
        until(lambda: sum(b.state == "busy" for b in connected.boards()) == 3, "three boards busy")
        record = mlc_deploy("farm", "list", farm.address, "--json", "-").record
        until(lambda: all(job.done() for job in jobs), "the jobs' end")
    assert record["queues"] == {"emulated-cortex-a53": 0, KIND: 4} and record["builders"] == 2
    states = [(b["kind"], b["state"], b["user"]) for b in record["boards"]]
    assert states[0] == ("emulated-cortex-a53", "free", "")
    assert states[1:] == [(KIND, "busy", connected.user)] * 3
    said = mlc_deploy("farm", "list", farm.address).stdout
    assert f" 0 measurements wait or run on {KIND}\n" in said


def test_one_call_at_a_time_runs_on_a_board_whoever_asks(farm: LocalFarm) -> None:
    with farm.connect() as ada, farm.connect() as bob:
        jobs = [boards(of).submit(span, 0.1) for _ in range(30) for of in (ada, bob)]
        spans = sorted(job.result(60) for job in jobs)
    for (one, _, end), (other, begin, _) in pairwise(spans):
        assert one != other or end <= begin
    assert len({one for one, _, _ in spans}) >= 3


def test_an_interactive_run_waits_for_one_measurement_at_most(farm: LocalFarm) -> None:
    with farm.connect() as night, farm.connect(priority=1000) as desk:
        own = boards(night)
        tuning = [own.submit(span, 0.5) for _ in range(30)]
        until(lambda: any(b.user for b in night.boards()), "tuning is under way")
        boards(desk).submit(span, 0.01).result(60)
        left = sum(not job.done() for job in tuning)
        assert left >= 20  # of 30, three boards: it went before those that waited
        for job in tuning:
            job.result(60)


def test_users_get_the_time_that_they_asked_for(farm: LocalFarm) -> None:
    """Three times as much, whoever sent more calls, and whoever came first."""
    with farm.connect() as little, farm.connect(share=3.0) as much:
        jobs = []
        for share, user, calls in ((1, little, 120), (3, much, 90)):
            of = boards(user)
            jobs += [(share, of.submit(span, 0.2)) for _ in range(calls)]
        ends = sorted((job.result(120)[2], share) for share, job in jobs)
    last = max(end for end, share in ends if share == 3)
    both = [share for end, share in ends if ends[12][0] < end <= last]
    assert len(both) >= 90
    assert both.count(3) / len(both) == pytest.approx(0.75, abs=0.075)


def test_a_board_that_is_set_aside_is_withdrawn(tmp_path: Path) -> None:
    with LocalFarm(tmp_path) as made:
        made.join("one", A72, "qemu://cortex-a53")
        with made.connect() as farm:
            wait_for(farm, boards=2)
            (board,) = (b for b in farm.boards() if b.url == A72)
            farm.set_aside(board, "it is slow")
            until(lambda: "withdrawn" in {b.state for b in farm.boards()}, "one withdrawn")
            states = {b.url: (b.state, b.why) for b in farm.boards()}
            assert states == {A72: ("withdrawn", "it is slow"), "qemu://cortex-a53": ("free", "")}


def test_what_calls_raise_arrives_and_a_lost_board_comes_back(
    farm: LocalFarm, tmp_path: Path
) -> None:
    with farm.connect() as connected:
        of = boards(connected)
        with pytest.raises(Refused, match="no"):
            of.submit(refuse).result(60)
        assert of.submit(lose, str(tmp_path / "lost")).result(60) == "done"


def test_a_member_that_dies_takes_no_call_with_it(tmp_path: Path) -> None:
    with LocalFarm(tmp_path) as farm:
        farm.join("one", A72)
        farm.join("two", A72)
        with farm.connect() as connected:
            wait_for(connected, boards=2)
            jobs = [boards(connected).submit(span, 0.5) for _ in range(8)]
            time.sleep(0.7)
            farm.kill("two")
            assert len([job.result(60) for job in jobs]) == 8
            assert len(connected.boards()) == 1


def test_a_scheduler_that_dies_and_comes_back_takes_no_call_with_it(tmp_path: Path) -> None:
    with LocalFarm(tmp_path) as farm:
        farm.join("one", A72)
        with farm.connect() as connected:
            wait_for(connected, boards=1)
            jobs = [boards(connected).submit(span, 0.5) for _ in range(6)]
            time.sleep(0.7)
            farm.kill("scheduler")
            time.sleep(1.0)
            farm.start_scheduler()
            assert len([job.result(90) for job in jobs]) == 6


def test_a_result_that_is_lost_on_its_way_is_computed_again(
    farm: LocalFarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler dies after a call has ended and before its result has arrived."""
    from distributed.comm.core import CommClosedError

    with farm.connect() as connected:
        scheduler = connected.client().scheduler
        lost: list[Any] = []
        gather = scheduler.gather

        async def closed_once(*args: Any, **kwargs: Any) -> Any:
            if not lost:
                lost.append(args)
                raise CommClosedError("Stream is closed")
            return await gather(*args, **kwargs)

        monkeypatch.setattr(scheduler, "gather", closed_once, raising=False)
        assert boards(connected).submit(span, 0.1).result(30)
    assert lost


def test_records_are_whole(farm: LocalFarm, mlc_deploy: Command, folder: Path) -> None:
    done = mlc_deploy("farm", "list", farm.address, "--json", "r.json")
    assert done.status == 0
    record = json.loads(Path("r.json").read_text())
    assert [b["url"] for b in record["boards"]] == ["qemu://cortex-a53", *[A72] * 3]
    assert all(b["fingerprint"].startswith("emulated aarch64") for b in record["boards"])
