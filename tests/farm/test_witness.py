"""Members that answer wrongly are found and named."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlc_deploy.driver.builder import build_object
from mlc_deploy.errors import FarmError
from mlc_deploy.farm.witness import EVERY, evidence, is_due, majority, wrong_ones
from mlc_deploy.tuned import Measured
from mlc_targets import Target
from tests.cli.command import MODELS, Command
from tests.farm.farms import LocalFarm, until, wait_for
from tests.tune.searches import matmul_task

A72 = "qemu://cortex-a72"


def counted(instructions: int, timing: str = "emulated") -> Measured:
    return Measured("ok", (), instructions, timing)


def test_what_has_to_be_equal() -> None:
    assert evidence(b"object") == evidence(b"object") != evidence(b"other")
    assert evidence(counted(3)) == evidence(counted(3)) != evidence(counted(4))
    for nothing in (None, 3.0, counted(3, "ok"), Measured("wrong"), np.zeros(3)):
        assert evidence(nothing) is None
    assert [n for n in range(2 * EVERY) if is_due(n)] == [0, EVERY]


def test_the_majority_of_three_is_right() -> None:
    answers = {"a": counted(3), "b": counted(4), "c": counted(3)}
    assert majority(answers) == counted(3)
    assert wrong_ones(answers, counted(3)) == ["b"]
    assert majority({"a": counted(3), "b": counted(4)}) is None
    assert majority({"a": counted(3), "b": counted(4), "c": counted(5)}) is None


def kernel() -> tuple[Any, Target]:
    task = matmul_task()
    return task.default(task.func), task.target


@pytest.mark.farm
def test_a_member_that_builds_wrongly_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    func, target = kernel()
    right = build_object(func, target)
    said: list[str] = []
    with LocalFarm(tmp_path) as farm:
        monkeypatch.setenv("MLC_TEST_MEMBER", "lies")
        farm.join("liar")
        monkeypatch.delenv("MLC_TEST_MEMBER")
        with farm.connect(warn=said.append) as connected:
            wait_for(connected, boards=0, builders=1)
            assert connected.builder().submit(build_object, func, target).result(120) == right
            (liar,) = set(connected.members("builder").values())
            assert said == [f"member {liar} of the farm gave a wrong object; it gets no more calls"]
            with pytest.raises(FarmError) as error:
                connected.builder().submit(build_object, func, target).result(60)
            assert str(error.value) == (
                f"no member is left for this call but {liar}, which answered wrongly\n"
                f"  in:  {farm.address}\n"
                "  try: mlc-deploy farm join, on another machine"
            )
            farm.join("honest")
            wait_for(connected, boards=0, builders=2)
            builder = connected.builder()
            for _ in range(4):
                assert builder.submit(build_object, func, target).result(120) == right
    assert len(said) == 1


@pytest.mark.farm
@pytest.mark.skipif(not shutil.which("qemu-aarch64"), reason="no QEMU: apt install qemu-user")
def test_a_member_that_counts_wrongly_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mlc_deploy: Command
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.chdir(tmp_path)
    tuned = ("tune", MODELS / "digits_cnn.onnx", "--target", "aarch64", "--only", "max_pool",
             "--search", "random", "--trials", "8", "--batch", "8")  # fmt: skip
    with LocalFarm(tmp_path) as farm:
        farm.join("one", A72)
        farm.join("two", A72)
        monkeypatch.setenv("MLC_TEST_MEMBER", "lies")
        farm.join("liar", A72)
        monkeypatch.setenv("MLC_TEST_MEMBER", "")
        with farm.connect() as connected:
            wait_for(connected, boards=3, builders=3)
            until(lambda: len(connected.members("host")) == 3, "three members")
            members = connected.members("host")
        liar = farm.processes["liar"].pid
        (name,) = {m for m in members.values() if m.endswith(f"-{liar}")}
        said = ""
        for n in range(4):  # each run checks its first answer, and one of EVERY
            ran = mlc_deploy(*tuned, "--farm", farm.address, "--db", f"{n}.jsonl")
            assert ran.status == 0, ran.stderr
            said += ran.stderr
        assert f"member {name} of the farm gave a wrong " in said
        for other in set(members.values()) - {name}:
            assert f"member {other} of the farm gave a wrong " not in said
