"""How the process of the command ends by signals, wherever they meet it: with 128 + the signal's
number, no traceback, no process and no temporary file."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.cli.command_process import PATIENCE, CommandProcess, until
from tests.driver.test_processes import large

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")

START = """
import os, signal, subprocess, sys, tempfile, threading, time
from pathlib import Path
from mlc_deploy.cli import ending, signals
from mlc_deploy.files.unfinished import replacing

def ready():
    Path("ready").touch()

def job():
    {job}

signals.catch_signals()
ending.end_with(job)
"""

# Where a signal meets the main thread.
PLACES = {
    "a call of Python": "ready(); time.sleep(600)",
    "a call of C that no signal ends": """
    import hashlib
    ready()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 1 << 30)""",
    "a finalizer": """
    class Slow:
        def __del__(self):
            ready()
            time.sleep(600)
    Slow()""",
    "a weak reference's callback": """
    import weakref
    class Thing:
        pass
    def callback(_):
        ready()
        time.sleep(600)
    thing = Thing()
    reference = weakref.ref(thing, callback)
    del thing""",
    "a callback of C": """
    import ctypes
    @ctypes.CFUNCTYPE(None)
    def callback():
        ready()
        time.sleep(600)
    callback()""",
    "a thread that is waited for": """
    thread = threading.Thread(target=lambda: (ready(), time.sleep(600)))
    thread.start()
    thread.join()""",
    "a lock": "ready(); lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "an import": """
    Path("slow.py").write_text("import time; open('ready', 'w'); time.sleep(600)")
    sys.path.append(".")
    import slow""",
    "the exit of a context": """
    with tempfile.TemporaryDirectory(), replacing("kept") as part:
        part.write_text("half")
        ready()
        time.sleep(600)""",
    "code that goes on after any exception": """
    ready()
    while True:
        try:
            time.sleep(600)
        except BaseException:
            pass""",
    "an exit function": """
    import atexit
    atexit.register(lambda: (ready(), time.sleep(600)))
    return 0""",
    "the start of a process": """
    ready()
    while True:
        subprocess.run(["true"])""",
    "a library's process": """
    from multiprocessing import resource_tracker
    resource_tracker.ensure_running()
    ready()
    time.sleep(600)""",
    "processes that will not end": """
    script = "trap '' INT TERM HUP; sleep 600 & touch ready; sleep 600"
    subprocess.Popen(["sh", "-c", script], start_new_session=True).wait()""",
}


def started(folder: Path, job: str) -> CommandProcess:
    return CommandProcess(folder, ("-c", START.format(job=job)))


def check_end(process: CommandProcess, status: int = 130, said: str = "interrupted") -> None:
    assert (process.wait(), process.stderr) == (status, f"error: {said}\n")
    assert until(lambda: not process.running())
    assert process.left() == []
    assert not (process.folder / "kept").exists()


@pytest.mark.parametrize("to_group", [False, True], ids=["alone", "group"])
@pytest.mark.parametrize("job", PLACES.values(), ids=PLACES)
def test_wherever_it_is(job: str, to_group: bool, tmp_path: Path) -> None:
    with started(tmp_path, job) as process:
        assert until((tmp_path / "ready").exists), process.stderr
        process.send(signal.SIGINT, to_group)
        check_end(process)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals(number: signal.Signals, tmp_path: Path) -> None:
    with started(tmp_path, PLACES["processes that will not end"]) as process:
        assert until((tmp_path / "ready").exists), process.stderr
        process.send(number, to_group=False)
        check_end(process, 128 + number, f"ended by {number.name}")


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    """As under nohup."""
    job = "ready(); os.kill(os.getpid(), signal.SIGHUP); return 5"
    start = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{START}"
    with CommandProcess(tmp_path, ("-c", start.format(job=job))) as process:
        assert (process.wait(), process.stderr) == (5, "")


def test_a_library_that_forks_has_signals_of_its_own(tmp_path: Path) -> None:
    job = """
    child = os.fork()
    if not child:
        time.sleep(600)
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    return 7"""
    with started(tmp_path, job) as process:
        assert (process.wait(), process.stderr) == (7, "")


ORDERLY = """
    try:
        with ending.orderly():
            ready()
            time.sleep(600)
    except KeyboardInterrupt:
        Path("told").touch()
        {then}
    return 130"""


def test_a_command_that_has_something_to_say(tmp_path: Path) -> None:
    with started(tmp_path, ORDERLY.format(then='print("so far: 1")')) as process:
        assert until((tmp_path / "ready").exists), process.stderr
        process.send(signal.SIGTERM, to_group=False)
        assert (process.wait(), process.stdout) == (143, "so far: 1\n")
        assert process.stderr == ""


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    then = "subprocess.run(['sleep', '600'])"
    with started(tmp_path, ORDERLY.format(then=then)) as process:
        assert until((tmp_path / "ready").exists), process.stderr
        process.send(signal.SIGINT, to_group=False)
        assert until((tmp_path / "told").exists)
        time.sleep(0.2)  # else it is one press
        process.send(signal.SIGINT, to_group=False)
        check_end(process)


@pytest.mark.parametrize(
    "job",
    [
        "ending.PATIENCE_SECONDS = 0.5\n" + ORDERLY.format(then="time.sleep(600)"),
        "ending.PATIENCE_SECONDS = 0.5\n    with ending.orderly():\n"
        + PLACES["code that goes on after any exception"].replace("\n    ", "\n        "),
        "ending.PATIENCE_SECONDS = 600\n    with ending.orderly():\n"
        + PLACES["a finalizer"].replace("\n    ", "\n        "),
    ],
    ids=["who says it for too long", "who does not listen", "who cannot listen"],
)
def test_a_command_that_does_not_come_to_an_end(job: str, tmp_path: Path) -> None:
    with started(tmp_path, job) as process:
        assert until((tmp_path / "ready").exists), process.stderr
        process.send(signal.SIGINT, to_group=False)
        check_end(process)


def test_a_key_at_a_terminal(tmp_path: Path) -> None:
    """A real Ctrl-C, while a password is typed unseen: what is typed next is seen again."""
    job = 'import getpass; getpass.getpass("password: ")'
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(tmp_path)
        os.execv(sys.executable, [sys.executable, "-c", START.format(job=job)])
    try:
        shown = b""
        while b"password: " not in shown:
            assert select.select([terminal], [], [], PATIENCE)[0], shown
            shown += os.read(terminal, 1024)
        assert not termios.tcgetattr(terminal)[3] & termios.ECHO
        os.write(terminal, b"\x03")
        while b"interrupted" not in shown:
            assert select.select([terminal], [], [], PATIENCE)[0], shown
            shown += os.read(terminal, 1024)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
        assert termios.tcgetattr(terminal)[3] & termios.ECHO
    finally:
        os.close(terminal)


IMPORTED = """
import subprocess
import sys
before = set(sys.modules)
import mlc_deploy.cli
print(*sorted(set(sys.modules) - before))
"""


def test_next_to_nothing_is_imported_before_signals_are_caught() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True)
    assert set(done.stdout.split()) <= {"mlc_deploy", "mlc_deploy.cli", "types"}, done.stderr


HELPED = """
import subprocess
import sys
from mlc_deploy.cli.main import main
main(["--help"])
print({"llvmlite", "mlc_deploy.graph", "mlc_deploy.cli.tune"} & set(sys.modules))
"""


def test_help_imports_no_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", HELPED], capture_output=True, text=True)
    assert done.stdout.endswith("set()\n"), done.stdout + done.stderr


def test_a_reader_that_goes_away(tmp_path: Path) -> None:
    """As `mlc-deploy … | head -1`: no traceback, and an end."""
    program = "from mlc_deploy.cli import main; main()"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", program, "board", "info", "local://"],
        stdout=writer, stderr=subprocess.PIPE, text=True, timeout=PATIENCE,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed(closed: str, tmp_path: Path) -> None:
    """As some that start programs close them: no file of ours takes their place. The model is large
    enough for processes that compile it, which are copies."""
    program = "from mlc_deploy.cli import main; main()"
    options = ["--target", "aarch64", "--board", "none", "--json", str(tmp_path / "record.json")]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", program,
         str(large(tmp_path)), *options],
        env={**os.environ, "MLC_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "record.json").read_text())["target"].startswith("llvm")
