"""`mlc-deploy board calibrate`: figures of this machine, what predictions make of them, and what is
refused. Times of a busy machine are noisy, so the verdict on them is set here."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlc_deploy.board.calibrated import calibration_file
from mlc_deploy.board.enrolled import Enrolled, enroll
from mlc_deploy.driver import calibrate
from mlc_deploy.driver.calibrate import TIMINGS, Network, Took, settled
from mlc_deploy.driver.compare import Comparison
from mlc_deploy.driver.deploy import deploy as honest
from mlc_deploy.driver.deployment import Deployment
from mlc_rpc import Lost, Timing
from tests.cli.command import MODELS, Command

needs_qemu = pytest.mark.skipif(
    not shutil.which("qemu-aarch64"), reason="no QEMU here: apt install qemu-user"
)
DIGITS = MODELS / "digits_cnn.onnx"
SMALL = (
    Network("sum", lambda: calibrate._sum(4, 64)),
    Network("dense", lambda: calibrate._dense(4, 64, 64)),
)
AS_IT_WAS = "warning: nothing was kept: the figures of 'here' are as they were\n"


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    enroll("here", Enrolled("local://"))
    enroll("emulated", Enrolled("qemu://cortex-a72"))


@pytest.fixture
def verdict(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Small networks, timed for a moment; sets the verdict on their times."""
    monkeypatch.setattr(calibrate, "NETWORKS", SMALL)
    monkeypatch.setattr("mlc_deploy.driver.deploy.SAMPLES", (1, 2))
    monkeypatch.setattr("mlc_deploy.driver.deploy.SAMPLE_MS", 1)
    monkeypatch.setattr(calibrate, "DOUBT", 100.0)  # of what a busy machine takes
    return lambda word: monkeypatch.setattr(Timing, "verdict", property(lambda _: word))


def lying(monkeypatch: pytest.MonkeyPatch, lie: Callable[[Deployment], Deployment]) -> None:
    """What is deployed on this machine tells something else."""

    def deploy(*args: Any, **options: Any) -> Deployment:
        done = honest(*args, **options)
        return done if done.emulated else lie(done)

    monkeypatch.setattr(calibrate, "deploy", deploy)


@needs_qemu
def test_a_board_is_calibrated_predicted_for_and_refined(
    mlc_deploy: Command, verdict: Callable[[str], None]
) -> None:
    verdict("ok")
    done = mlc_deploy("board", "calibrate", "here")
    assert done.status == 0, done.stderr
    assert f"calibrated: --target here ({calibration_file('here')})\n" in done.stderr
    assert " factors   computing " in done.stdout and " error     typically " in done.stdout
    kept = json.loads(calibration_file("here").read_text())
    assert {row["name"] for row in kept["rows"]} == {"sum", "dense"}
    assert kept["like"] and kept["core"] == "cortex-a76"  # nobody counts x86-64

    found = mlc_deploy("--target", "here", "--json", "-")
    assert found.status == 0, found.stderr
    predicted = found.record["predicted"]
    assert predicted["calibrated"]["board"] == "here" and found.record["board"]["emulated"]
    low, high = kept["interval"]
    assert predicted["low"] == pytest.approx(predicted["ms"] * low)
    assert predicted["high"] == pytest.approx(predicted["ms"] * high)
    said = f"counted as a cortex-a76's), calibrated on this board on {kept['date']}\n"
    assert " on here (" in found.stderr and said in found.stderr

    board = mlc_deploy("compare-boards", DIGITS, "--target", "here", "--json", "-").record["boards"]
    assert [row["board"] for row in board] == ["here"] and board[0]["fits"]
    assert board[0]["predicted"]["ms"] == pytest.approx(predicted["ms"], rel=1e-9)

    refined = mlc_deploy("--board", "here", "--refine", "--threads", "1")
    assert refined.status == 0 and "refined: 'here' had " in refined.stderr, refined.stderr
    assert " ms for digits_cnn, which took " in refined.stderr
    rows = json.loads(calibration_file("here").read_text())["rows"]
    assert [row["name"] for row in rows[-1:]] == ["digits_cnn"] and len(rows) == 1 + len(
        kept["rows"]
    )

    verdict("noisy")
    before = calibration_file("here").read_bytes()
    again = mlc_deploy("--board", "here", "--refine", "--threads", "1")
    assert again.status == 0
    assert "warning: the figures of 'here' are as they were: the times are noisy\n" in again.stderr
    assert calibration_file("here").read_bytes() == before

    mlc_deploy("board", "remove", "here")
    assert not calibration_file("here").exists()


@needs_qemu
def test_a_board_that_is_lost_keeps_its_figures(
    mlc_deploy: Command, verdict: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict("ok")
    calibration_file("here").parent.mkdir(parents=True)
    calibration_file("here").write_bytes(before := b"of an earlier time")
    left = [2]

    def dies(done: Deployment) -> Deployment:
        left[0] -= 1
        if not left[0]:
            raise Lost("the board does not answer any more", board="local://")
        return done

    lying(monkeypatch, dies)
    done = mlc_deploy("board", "calibrate", "here")
    assert done.status == 3
    assert done.stderr.endswith(
        f"{AS_IT_WAS}error: the board does not answer any more\n  on:  local://\n"
    ), done.stderr
    assert calibration_file("here").read_bytes() == before
    assert [p.name for p in calibration_file("here").parent.iterdir()] == ["here.json"]


@needs_qemu
@pytest.mark.parametrize(
    ("lie", "message"),
    [
        (
            lambda done: replace(done, checks={"z": Comparison(1.0, 1.0, wrong=3)}),
            "error: the board's outputs are wrong, so nothing is kept\n"
            "  in:  local://: sum\n"
            "  try: mlc-deploy MODEL --board NAME, which says which elements are wrong\n",
        ),
        (
            lambda done: replace(done, timing=replace(done.timing, samples=(900.0,), number=(1,))),
            "error: the board's clock says 900.00 s of runs that took at most ",
        ),
    ],
    ids=["outputs", "clock"],
)
def test_a_board_that_lies(
    lie: Callable[[Deployment], Deployment], message: str, mlc_deploy: Command,
    verdict: Callable[[str], None], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    verdict("ok")
    lying(monkeypatch, lie)
    done = mlc_deploy("board", "calibrate", "here")
    assert done.status == 1 and AS_IT_WAS + message in done.stderr, done.stderr
    assert not calibration_file("here").exists()


@needs_qemu
def test_hopeless_times_are_not_kept(
    mlc_deploy: Command, verdict: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict("noisy")
    monkeypatch.setattr(calibrate, "TIMINGS", 2)
    monkeypatch.setattr(calibrate, "HOPELESS", -1.0)  # never near enough
    done = mlc_deploy("board", "calibrate", "here")
    assert done.status == 1 and done.stderr.endswith(
        f"{AS_IT_WAS}"
        "error: times stay noisy (1 of 2 networks), so nothing is kept\n"
        "  in:  local://: sum\n"
        "  try: mlc-deploy board doctor says what disturbs the board; then this command again\n"
    ), done.stderr
    assert not calibration_file("here").exists()


@needs_qemu
def test_disturbed_times_widen_the_interval(
    mlc_deploy: Command, verdict: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict("noisy")
    monkeypatch.setattr(calibrate, "AGREE", 100.0)  # at once
    done = mlc_deploy("board", "calibrate", "here")
    assert done.status == 0, done.stderr
    kept = json.loads(calibration_file("here").read_text())
    spreads = [row["spread"] for row in kept["rows"]]
    disturbed = [spread for spread in spreads if spread]
    said = (
        f" noise     {len(disturbed)} of {len(spreads)} times were disturbed, and are the least "
        f"seen; most runs took up to {max(disturbed):.0%} more: mlc-deploy board doctor here says "
        "why\n"
    )
    assert said in done.stdout
    ones = [row["spread"] for row in kept["rows"] if row["threads"] == 1]
    assert kept["interval"][1] >= 1 + max(ones) - 1e-9
    assert mlc_deploy("--target", "here", "--json", "-").record["predicted"]["calibrated"]


def timing(*samples: float) -> Timing:
    return Timing(samples, (1,) * len(samples))


CALM = timing(*[1.0, 1.01, 1.02] * 4)
DISTURBED = timing(*[1.0, 1.5, 2.0] * 4)
SLOWER = timing(*[1.25, 1.5, 2.0] * 4)
SLOW = timing(*[2.0, 2.5, 3.0] * 4)


def test_times_settle() -> None:
    assert [t.verdict for t in (CALM, DISTURBED, SLOWER, SLOW)] == ["ok", "noisy", "noisy", "noisy"]
    assert settled([CALM]) == Took(1.01, 0.0)
    assert settled([SLOW, CALM]) == Took(1.01, 0.0)
    assert settled([DISTURBED]) is None
    assert settled([DISTURBED, SLOWER]) is None
    assert settled([DISTURBED, SLOW, DISTURBED]) == Took(1.0, 1.0)


def test_times_that_never_agree() -> None:
    """The last timing decides: the least, where another's is not much above it."""
    slow = [SLOW] * (TIMINGS - 2)
    assert settled([DISTURBED, SLOWER, *slow[1:]]) is None
    assert settled([DISTURBED, SLOWER, *slow]) == Took(1.0, 1.0)
    assert settled([DISTURBED, SLOW, *slow]) is None


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (
            ("board", "calibrate", "hero"),
            "error: no board is called 'hero'\n  in:  board calibrate hero\n  try: here\n-> 2",
        ),
        (
            ("board", "calibrate", "attic"),
            "error: no board is called 'attic'\n  in:  board calibrate attic\n"
            "  try: mlc-deploy board enroll attic ssh://[user@]host\n-> 2",
        ),
        (
            ("board", "calibrate", "local://"),
            "error: figures are kept by a board's name, and this is an address\n"
            "  in:  board calibrate local://\n"
            "  try: mlc-deploy board enroll NAME local://, then NAME\n-> 2",
        ),
        (
            ("board", "calibrate", "emulated"),
            "error: an emulated board has no times of its own: QEMU's seconds are not those "
            "of a board\n"
            "  in:  board calibrate emulated, qemu://cortex-a72\n"
            "  try: a real board; --target predicts for boards that are not\n-> 2",
        ),
        (
            ("--target", "here"),
            "error: the board 'here' was not calibrated, so nothing can be predicted for it\n"
            "  in:  --target here\n"
            "  try: mlc-deploy board calibrate here, or --board here to run there\n-> 2",
        ),
        (
            ("--board", "here", "--refine"),
            "error: only the figures of a calibrated board are refined\n"
            "  in:  --refine --board here\n"
            "  try: mlc-deploy board calibrate NAME, then --board NAME\n-> 2",
        ),
    ],
)  # fmt: skip
def test_refusals(args: tuple[str, ...], complaint: str, mlc_deploy: Command) -> None:
    assert mlc_deploy(*args).complaint == complaint


def test_a_damaged_file_is_named(mlc_deploy: Command) -> None:
    path = calibration_file("here")
    path.parent.mkdir(parents=True)
    path.write_text('{"form": 1}')
    assert mlc_deploy("--target", "here").complaint == (
        "error: the figures of 'here' cannot be read: it is not whole (KeyError: 'rows')\n"
        f"  in:  {path}\n"
        "  try: mlc-deploy board calibrate here, which writes it again\n-> 2"
    )
