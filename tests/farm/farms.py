"""A farm on this machine: a scheduler and members, each a process that can be killed."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlc_deploy.farm.client import Farm
from mlc_rpc import Unreachable
from tests.farm import jobs

ROOT = Path(__file__).parents[2]
PATHS = [str(ROOT / part) for part in (".", "host", "rpc", "targets", "device_runtime")]
jobs.register()
MLC_DEPLOY = (sys.executable, "-m", "mlc_deploy.cli")
SECONDS = 120.0  # a busy machine takes long to start processes


def free_port() -> int:
    """A port that nobody has, and that the system gives to nobody who connects: a farm's members
    connect again and again while there is no scheduler, and would take its port."""
    for port in random.sample(range(10_000, 32_000), 100):
        with socket.socket() as s, suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def until(holds: Callable[[], Any], what: str, seconds: float = SECONDS) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.1)


class LocalFarm:
    """Left as a context, it ends its processes."""

    def __init__(self, folder: Path, scheme: str = "tcp", host: str = "127.0.0.1") -> None:
        self.port, self.folder = free_port(), folder
        self.address = f"{scheme}://{host}:{self.port}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> LocalFarm:
        self.start_scheduler()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()

    def start_scheduler(self) -> None:
        self.start("scheduler", *MLC_DEPLOY, "farm", "scheduler", self.address)

    def join(self, name: str, *boards: str, builders: int = 1) -> None:
        of = [part for board in boards for part in ("--board", board)]
        command = ("farm", "join", self.address, "--builders", str(builders), *of)
        self.start(name, sys.executable, "-m", "tests.farm.jobs", *command)

    def start(self, name: str, *command: str) -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env
            )

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def connect(self, **options: Any) -> Farm:
        end = time.monotonic() + SECONDS
        while True:
            try:
                return Farm(self.address, **options)
            except Unreachable:
                assert time.monotonic() < end
                time.sleep(0.2)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")


def wait_for(farm: Farm, boards: int, builders: int = 0) -> None:
    until(
        lambda: (
            sum(b.state == "free" for b in farm.boards()) >= boards and farm.builders() >= builders
        ),
        f"{boards} boards and {builders} builders",
    )
