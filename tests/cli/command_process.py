"""The command as a process of its own, which signals end: what it said, and what it left."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PATIENCE = 120.0  # seconds, for what takes one when nothing else runs
COMMAND = ("-m", "mlc_deploy.cli")
# Before a command: signals end it even if those who run the tests ignore them, as nohup does.
AS_AT_A_TERMINAL = ("env", "--default-signal=HUP,INT")


def until(holds: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """What a condition gives as soon as that is true, or at the latest after so long."""
    deadline = time.monotonic() + seconds
    while not (found := holds()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


@dataclass
class CommandProcess:
    """Python with arguments, in `folder`, where its caches and temporary files are, too: leader of
    a session, as at a terminal. Left as a context, it ends with all that it started."""

    folder: Path
    args: Sequence[str | Path]
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.temporary, self.cache = self.folder / "tmp", self.folder / "cache"
        for made in (self.temporary, self.cache):
            made.mkdir(exist_ok=True)
        self._mark = f"MLC_TEST={secrets.token_hex(8)}"
        own = {"TMPDIR": str(self.temporary), "MLC_CACHE_DIR": str(self.cache)}
        own["XDG_CACHE_HOME"] = str(self.cache)
        own |= dict([self._mark.split("=")])
        self._out, self._err = (self.folder / name for name in ("stdout", "stderr"))
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                [*AS_AT_A_TERMINAL, sys.executable, *self.args],
                cwd=self.folder,
                env={**os.environ, **own, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def __enter__(self) -> CommandProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pid in self.running():
            os.kill(pid, signal.SIGKILL)

    @property
    def stdout(self) -> str:
        return self._out.read_text()

    @property
    def stderr(self) -> str:
        return self._err.read_text()

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self, seconds: float = PATIENCE) -> int:
        return self._process.wait(seconds)

    def catches_signals(self) -> bool:
        """Whether the first line of the command has been: Python alone does not catch SIGTERM."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        caught = status.partition("SigCgt:")[2].split()  # nothing, when it has ended
        return bool(caught) and bool(int(caught[0], 16) >> (signal.SIGTERM - 1) & 1)

    def send(self, number: signal.Signals, to_group: bool) -> None:
        (os.killpg if to_group else os.kill)(self.pid, number)

    def running(self) -> list[int]:
        """Every process that descends from the command, whatever became of those between."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self._mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:  # it has ended, or is another user's
                pass
        return found

    def left(self) -> list[str]:
        """Temporary files, and those beside the files that they were to become."""
        found = list(self.temporary.rglob("*"))
        found += [p for p in self.folder.rglob(".*") if p.is_file()]
        return [str(path.relative_to(self.folder)) for path in found]


def alive(pid: int) -> bool:
    """Whether it runs; what only waits for its parent to ask does not."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
