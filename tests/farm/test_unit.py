"""What of a farm needs no Dask: addresses, kinds of boards, when one is withdrawn, refusals."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mlc_deploy.board.connect import connect
from mlc_deploy.errors import FarmError
from mlc_deploy.farm.calibration import deviating, times_of
from mlc_deploy.farm.client import FarmBoards, matching, runs_on
from mlc_deploy.farm.engine import own_host, scheduler_address
from mlc_deploy.farm.member import OfferedBoard, Place, kind_of, unfit_now
from mlc_deploy.farm.turns import Turns, dask_priority
from mlc_deploy.farm.work import BoardStatus, Description
from mlc_rpc import Unreachable
from mlc_rpc.facts import Facts
from mlc_rpc.session import Cpu, Device
from mlc_targets import Target
from tests.cli.command import Command
from tests.tune.test_boards import HERE, FakeSession


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp://127.0.0.1", "tcp://127.0.0.1:8786"),
        ("tcp://localhost:1", "tcp://localhost:1"),
        ("tcp://[::1]:9", "tcp://[::1]:9"),
        ("tls://attic/", "tls://attic:8786"),
    ],
)
def test_addresses(text: str, address: str) -> None:
    assert scheduler_address(text) == address


@pytest.mark.parametrize(
    "text", ["tcp://attic:9", "tcp://10.0.0.7", "tcp://[fd00::2]:9", "tcp://0.0.0.0", "tcp://[::]"]
)
def test_plain_text_is_for_this_machine_alone(text: str) -> None:
    with pytest.raises(FarmError) as error:
        scheduler_address(text)
    place = text.removeprefix("tcp://")
    place = place if place.endswith(":9") else f"{place}:8786"
    assert str(error.value) == (
        "a farm without certificates is for this machine alone: tcp:// is not encrypted, and takes "
        f"work of everyone who reaches it\n  in:  {text}\n"
        f"  try: mlc-deploy farm keys farm-keys, then tls://{place}"
    )


def test_a_member_listens_where_it_reaches_the_scheduler() -> None:
    assert own_host("tcp://127.0.0.1:8786") == own_host("tls://localhost:8786") == "127.0.0.1"
    assert own_host("tcp://[::1]:8786") == "::1"


@pytest.mark.parametrize(
    "text", ["attic", "http://a", "tcp://", "tcp://a:x", "tcp://a/b", "tls://u@a"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(FarmError) as error:
        scheduler_address(text)
    assert str(error.value) == (
        f"'{text}' is not an address of a scheduler\n  try: tls://host:8786, or tcp://host:8786"
    )


def session(*models: str, machine: str = "aarch64", emulated: bool = False) -> Any:
    found: Any = FakeSession(
        "ssh://a", replace(HERE, machine=machine, cpus=tuple(map(Cpu, models)))
    )
    found.emulated, found.counting, found.why_not_counting = emulated, emulated, "no"
    return found


def test_the_kind_is_the_model_that_was_enrolled_or_that_of_the_cores() -> None:
    assert kind_of(session("cortex-a76"), "raspberry-pi/5") == "raspberry-pi/5"
    assert kind_of(session("cortex-a76"), "aarch64") == "cortex-a76"
    assert kind_of(session("cortex-a55", "cortex-a55", "cortex-a76")) == "cortex-a55+cortex-a76"
    assert kind_of(session("cortex-a72", emulated=True)) == "emulated-cortex-a72"
    assert kind_of(session("", machine="arm")) == "arm"
    assert kind_of(session("AMD EPYC #1")) == "AMD_EPYC__1"


def test_only_what_holds_at_this_moment_withdraws_a_board() -> None:
    assert unfit_now(None) == unfit_now(Facts()) == ""
    assert unfit_now(Facts(throttled=0x50000, load=3.0)) == ""  # it was; others run
    assert unfit_now(Facts(throttled=0x50004)) == "throttled (get_throttled 0x50004)"
    assert unfit_now(Facts(temperatures={"0 cpu": 69.0})) == ""
    assert unfit_now(Facts(temperatures={"0 cpu": 41.0, "1 gpu": 82.4})) == "hot: 82 °C"


def test_a_board_is_offered_withdrawn_while_hot_and_offered_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    degrees = 40.0
    monkeypatch.setattr(
        "mlc_deploy.farm.member.read_facts", lambda *_: Facts(temperatures={"0 cpu": degrees})
    )
    said: list[str] = []
    board = OfferedBoard(
        Place("ssh://a"),
        said.append,
        connect=lambda _: session("cortex-a72"),
        calibrate=lambda _: (1.0, 2.0),
    )
    try:
        assert board.status().state == "withdrawn" and not board.status().about
        for degrees, state, why in (
            (40, "free", ""),
            (75, "withdrawn", "hot: 75 °C"),
            (50, "free", ""),
        ):
            board.check()
            status = board.status()
            assert (status.state, status.why, status.degrees) == (state, why, degrees)
            assert status.times == (1.0, 2.0)
        with board.post.working_for("ada@desk"):
            assert (board.status().state, board.status().user) == ("busy", "ada@desk")
        assert board.status().user == ""
        board.set_aside("its copy of memory takes 2.00 times longer")
        board.check()
        assert board.status().why == "its copy of memory takes 2.00 times longer"
        assert board.name("x") == "board ssh://a"
    finally:
        board.pool.shutdown()
    offered = "ssh://a: offered as board-cortex-a72"
    aside = "ssh://a: withdrawn: its copy of memory takes 2.00 times longer"
    assert said == [offered, "ssh://a: withdrawn: hot: 75 °C", offered, aside]


def test_a_board_that_cannot_be_reached_is_withdrawn_until_it_can() -> None:
    there = False

    def connect(url: str) -> Any:
        if not there:
            raise Unreachable("no route", board=url)
        return session("cortex-a72")

    said: list[str] = []
    board = OfferedBoard(
        Place("qemu://a"),
        said.append,
        connect=connect,
        calibrate=lambda _: (),
        pause=0.01,
        quarantine=0.01,
    )
    try:
        board.check()
        assert board.status().state == "withdrawn" and "no route" in board.status().why
        there = True
        while board.why:
            board.check()
        assert board.status().state == "free"
    finally:
        board.pool.shutdown()


def board(url: str, kind: str = "a", exact: str = "1", device: Device = HERE) -> BoardStatus:
    about = Description(url, device, False, False, "")
    return BoardStatus("h", url, kind, exact, f"fingerprint {exact}", "free", about=about)


def test_boards_of_one_kind_that_can_be_compared_are_chosen() -> None:
    features = frozenset(Target("aarch64").required_features)
    able = replace(HERE, features=features)
    boards = [board("1", device=able)]
    boards += [board(url, exact="2", device=able) for url in "23"]
    chosen, others = matching(boards, None, None, "tcp://s")
    assert [b.url for b in chosen] == ["2", "3"] and [o.board.url for o in others] == ["1"]
    arm = board("4", "b", device=replace(HERE, machine="arm"))
    assert matching([*boards, arm], "b", None, "")[0] == [arm]
    (other,) = matching([*boards, arm], None, Target("aarch64"), "")[1]
    assert (other.board, other.why, other.slow) == (boards[0], "another a than the others", False)
    assert arm.about and not runs_on(Target("aarch64"), arm.about)


@pytest.mark.parametrize(
    ("kinds", "kind", "said"),
    [
        ("", None, "the farm has no board at all\n{}mlc-deploy farm join, where boards are"),
        ("ab", None, "the farm has boards of several kinds\n{}--board-kind a or --board-kind b"),
        ("ab", "c", "the farm has no board of kind 'c'\n{}--board-kind a or --board-kind b"),
    ],
)
def test_no_kind_or_several(kinds: str, kind: str | None, said: str) -> None:
    with pytest.raises(FarmError) as error:
        matching([board(k, k) for k in kinds], kind, None, "tcp://s")
    assert str(error.value) == said.format("  in:  tcp://s\n  try: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--board-kind", "a"),
         "--board-kind is of a farm\n  in:  --board-kind a\n  try: with --farm"),
        (("--priority", "3"), "--priority is of a farm\n  in:  --priority 3\n  try: with --farm"),
        (("--share", "2"), "--share is of a farm\n  in:  --share 2.0\n  try: with --farm"),
        (("--farm", "tcp://s", "--share", "0"), "--share must be more than 0\n  in:  --share 0"),
        (("--farm", "tcp://s", "--board", "local://"),
         "--board has no effect with a farm\n  in:  --farm tcp://s\n  try: --board-kind KIND"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together(
    arguments: tuple[str, ...], said: str, mlc_deploy: Command
) -> None:
    done = mlc_deploy("tune", "--db", "t.jsonl", *arguments)
    assert done.status == 2 and said in done.complaint


def test_boards_whose_times_differ_are_found() -> None:
    assert deviating([]) == deviating([()]) == deviating([(), (1.0, 1.0)]) == []
    assert deviating([(1.0, 1.0), (1.15, 0.9), (1.1, 1.1)]) == []
    assert deviating([(1.0, 1.0), (1.0, 1.0), (1.0, 2.0), ()]) == [2]
    assert deviating([(1.0, 1.0), (0.5, 1.0), (1.0, 1.0)]) == [1]  # faster: another clock
    assert deviating([(1.5, 1.0), (1.0, 1.0)]) == [0]  # of two, the faster is believed
    able = replace(HERE, features=frozenset(Target("aarch64").required_features))
    times = {"1": (1.0, 1.0), "2": (1.05, 2.0), "3": (0.95, 1.0), "4": ()}
    boards = [replace(board(url, device=able), times=t) for url, t in times.items()]
    chosen, others = matching(boards, None, None, "")
    assert [b.url for b in chosen] == ["1", "3", "4"]
    assert [(o.board.url, o.why, o.slow) for o in others] == [
        ("2", "its copy of memory takes 2.00 times longer than on others of its kind", True)
    ]


def test_calibration_times_both_kernels() -> None:
    with connect("local://") as session:
        computing, memory = times_of(session)
    assert 1e-6 < computing < 1 and 1e-6 < memory < 1


def test_users_get_turns_by_their_shares() -> None:
    """Simulated: whoever has the lowest turn is served. The one who comes late makes up for
    nothing, and calls count by the time that they take."""
    users = {"ada": Turns(3.0), "bob": Turns(1.0)}
    lasting, served = {"ada": 1.0, "bob": 1.0, "eve": 4.0}, dict.fromkeys("abe", 0.0)
    waiting: list[tuple[float, int, str, float]] = []
    reached = 0.0

    def send(name: str) -> None:
        users[name].came()
        turn, counted = users[name].take()
        waiting.append((turn, len(served_calls) + len(waiting), name, counted))

    served_calls: list[str] = []

    def serve(calls: int) -> None:
        nonlocal reached
        for _ in range(calls):
            waiting.sort()
            turn, _, name, counted = waiting.pop(0)
            reached = max(reached, turn)
            served[name[0]] += lasting[name]
            served_calls.append(name)
            users[name].ended(reached, lasting[name], counted)
            send(name)
            users[name].left()

    def come(name: str) -> None:
        for _ in range(12):
            send(name)

    come("bob")
    come("ada")
    serve(60)
    before = dict(served)
    serve(400)
    got = {name: served[name] - before[name] for name in served}
    assert got["a"] / (got["a"] + got["b"]) == pytest.approx(0.75, abs=0.02)
    assert served["a"] / (served["a"] + served["b"]) == pytest.approx(0.75, abs=0.04)
    users["eve"] = Turns(1.0, reached)
    come("eve")
    serve(200)
    before = dict(served)
    serve(600)
    got = {name: served[name] - before[name] for name in served}
    whole = sum(got.values())
    assert [round(got[n] / whole, 1) for n in "abe"] == [0.6, 0.2, 0.2]
    assert dask_priority(1, 1e8) > dask_priority(0, 0.0) > dask_priority(0, 1.0)


def test_who_comes_begins_at_the_turn_of_the_boards_busy_or_idle() -> None:
    farm: Any = SimpleNamespace(share=1.0)
    used, new = replace(board("1"), turn=90.0), board("2")
    for boards, begun in (
        ([used, new], 90.0),
        ([replace(used, state="busy"), new], 90.0),
        ([replace(used, state="busy"), replace(new, state="busy", turn=70.0)], 70.0),
        ([new], 0.0),
    ):
        turns = FarmBoards(farm, boards)._turns
        turns.came()
        assert turns.take() == (begun, 0.0)


MISSING = """
import sys
sys.modules["distributed"] = None
from mlc_deploy.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "command",
    [
        ("farm", "join", "tcp://127.0.0.1"),
        ("farm", "list", "tcp://127.0.0.1"),
        ("farm", "scheduler"),
        ("farm", "keys", "k"),
        ("tune", "--farm", "tcp://127.0.0.1", "--db", "t.jsonl"),
    ],
    ids="-".join,
)
def test_a_missing_extra_is_named(command: tuple[str, ...], tmp_path: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MISSING, *command], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr == (
        "error: a farm needs the package distributed, which is not installed\n"
        "  try: pip install 'mlc-deploy[farm]'\n"
    )


UNUSED = """
import sys
from mlc_deploy.cli.main import main
import mlc_deploy.cli.tune, mlc_deploy.tune.api, mlc_deploy.cli.run
assert main(["board", "list"]) == 0
found = {m.partition(".")[0] for m in sys.modules} & {"dask", "distributed", "tornado"}
assert not found and "mlc_deploy.farm" not in sys.modules, found
"""


def test_without_a_farm_nothing_of_it_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", UNUSED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
