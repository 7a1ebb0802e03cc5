"""The box on a whole board: a real kernel's, with the rights and the files of a real system."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.board.runtime_files import runtime_file
from mlc_rpc import connect, errors, wire
from mlc_rpc.ssh import open_shell
from mlc_rpc.ssh_config import resolve
from mlc_rpc.ssh_scripts import script
from mlc_rpc.transport import SshUrl, parse_url
from tests.machine.machine import SHELL_SECONDS, Machine
from tests.runtime.board import BYTES, X, module_of
from tests.runtime.escape_probes import Bench, of_machine

pytestmark = pytest.mark.boards

PROBES = of_machine("aarch64")
FOLDER = "/tmp/escape"
# One connection for all, since each takes seconds.
STATE = f"""ls -ln {FOLDER}; cat {FOLDER}/victim
for p in /proc/[0-9]*; do case $(ls -l $p/exe) in *runtime-*) echo runs;; esac; done 2> /dev/null"""


@pytest.fixture(scope="module")
def bench(machine: Machine) -> Iterator[Bench]:
    """One session for all probes, since each leaves the board as it was."""
    machine.shell(f"mkdir {FOLDER}; chmod 777 {FOLDER}; printf untouched > {FOLDER}/victim;"
                  f"chmod 666 {FOLDER}/victim")  # fmt: skip
    url = parse_url(machine.url)
    assert isinstance(url, SshUrl)
    shell = open_shell(resolve(url), SHELL_SECONDS)
    try:
        with mlc.connect(machine.url) as session:
            yield Bench(
                session, "aarch64", FOLDER, lambda: shell.run(script(STATE), SHELL_SECONDS).out
            )
    finally:
        shell.run(script(f"rm -r {FOLDER}"), SHELL_SECONDS)
        shell.close()


def test_all_of_it_holds(bench: Bench) -> None:
    """Debian 12's kernel has Landlock's second version, without ports and signals."""
    assert bench.session.device.box == tuple(p for p in wire.BOX if p not in ("tcp", "signals"))


@pytest.mark.parametrize("name", PROBES)
def test_a_kernel_does_not_get_out(name: str, bench: Bench) -> None:
    began = time.monotonic()
    bench.goes_on()
    bench.reaches_nothing(PROBES[name], slack=10 * (time.monotonic() - began))


def test_a_32_bit_program_is_in_the_box_too(machine: Machine) -> None:
    """Whose calls have other numbers: computing, threads and timing go on."""
    with connect(machine.url, lambda _: runtime_file("arm")) as session:
        assert session.device.machine == "arm" and "syscalls" in (session.device.box or ())
        module = session.load(module_of("add", "abort", machine="arm"))
        x, total = session.tensor(X), session.empty((64,))
        for threads in (1, 3):
            module["add"](x, x, total, threads=threads)
            np.testing.assert_array_equal(total.numpy(), 2 * X)
        evaluator = module["add"].time_evaluator(number=2, repeat=3, cooldown_interval_ms=1)
        assert len(evaluator(x, x, total).samples) == 3
        with pytest.raises(errors.Crashed, match="it called getpid, which the sandbox forbids"):
            module["abort"](session.tensor(BYTES))
        module["add"](x, x, total)
