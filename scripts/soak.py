"""Sessions with boards of this machine, and random faults, for minutes or hours.

    python scripts/soak.py [--minutes 5] [--threads 4] [--seed N]

Threads connect by local:// and tcp://, run, time, upload and crash kernels, while workers and
supervisors are killed and links are cut under them. Held throughout: a result is never lost and
never counted twice, data comes back as it went, an error is one of the typed tree's and names the
board; and at the end no process, descriptor or thread is left and memory has not grown.
Exit status 0: all of that held.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mlc_deploy.board.runtime_files import runtime_file  # noqa: E402
from mlc_deploy.driver.children import give_back  # noqa: E402
from mlc_rpc import RemoteModule, RemoteTensor, Session, connect, errors  # noqa: E402
from mlc_rpc.local import local_machine  # noqa: E402
from tests.rpc.listener import Listener, descendants  # noqa: E402
from tests.runtime.board import BYTES, X, module_of  # noqa: E402

GROWTH_BYTES = 32 << 20  # a leak of a session is more in a minute; the allocator's whims are less
PATIENCE_SECONDS = 20.0  # what ends has this long to, on a machine that is busy with other things


class Broken(Exception):
    """Something that must hold did not."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"soak: seed {options.seed}, {options.minutes:g} minutes", flush=True)
    try:
        done, grown = soak(options.minutes * 60, options.threads, options.seed)
    except Broken as error:
        sys.exit(f"soak: {error}; seed {options.seed}")
    print("soak: " + ", ".join(f"{count} {name}" for name, count in sorted(done.items())))
    print(
        f"soak: nothing is left; memory grew by {grown / (1 << 20):.1f} MB after the first quarter"
    )


def soak(seconds: float, threads: int, seed: int) -> tuple[Counter[str], int]:
    """What was done, and how often; and bytes by which memory grew. Raises Broken."""
    machine = local_machine()
    code = {name: module_of(name, machine=machine) for name in ("count", "wild", "spin")}
    before = kept()
    begin, done = time.monotonic(), Counter[str]()
    with Listener(runtime_file(machine)) as listener:
        # Memory is compared where all sessions have ended: once after a while, and at the end.
        resident = grown = 0
        for phase, until in enumerate((begin + seconds / 4, begin + seconds)):
            users = [
                User(listener, code, random.Random(f"{seed} {phase} {n}"), until, done)
                for n in range(threads)
            ]
            for user in users:
                user.start()
            for user in users:
                user.join()
            if failures := [user.failure for user in users if user.failure]:
                raise Broken(failures[0])
            listener.wait_until_idle()
            grown, resident = memory() - resident, memory()
        if grown > GROWTH_BYTES:
            raise Broken(f"memory grew by {grown >> 20} MB")
    patience = time.monotonic() + PATIENCE_SECONDS
    while (left := kept() - before) and time.monotonic() < patience:
        time.sleep(0.1)
    if left:
        raise Broken(f"left behind: {', '.join(sorted(left.elements()))}")
    return done, grown


def kept() -> Counter[str]:
    """What this process has that must be given back: processes, threads, open descriptors."""
    gc.collect()
    names = Counter(f"process {pid}" for pid in descendants(os.getpid()))
    names.update(f"thread {thread.name}" for thread in threading.enumerate())
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor that listed this directory is closed
            names[f"descriptor {os.readlink(f'/proc/self/fd/{number}')}"] += 1
    return names


def memory() -> int:
    """Resident bytes of this process and all below it, garbage and free memory apart."""
    gc.collect()
    give_back()
    total = 0
    for pid in (os.getpid(), *descendants(os.getpid())):
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:  # it has just ended
            continue
    return total * os.sysconf("SC_PAGE_SIZE")


class User(threading.Thread):
    """One session after the other, with random work in it, until the time is over."""

    def __init__(
        self,
        listener: Listener,
        code: dict[str, bytes],
        chance: random.Random,
        end: float,
        done: Counter[str],
    ) -> None:
        super().__init__(daemon=True)
        self.listener, self.code, self.chance, self.end = listener, code, chance, end
        self.done = done
        self.failure = ""

    def run(self) -> None:
        try:
            while time.monotonic() < self.end:
                url = self.chance.choice(("local://", self.listener.url))
                with connect(url, runtime_file, key=self.listener.key) as session:
                    self.done["sessions"] += 1
                    self.use(session)
        except (Broken, errors.RpcError, AssertionError) as error:
            self.failure = f"{type(error).__name__}: {error}"

    def use(self, session: Session) -> None:
        """Random work until the session is lost, or enough of it."""
        try:
            modules = {name: session.load(data) for name, data in self.code.items()}
            counter = session.tensor(np.zeros(1, np.int32))
        except errors.Lost:
            return
        work = (self.count, self.count, self.count, self.crash, self.loop, self.echo, self.kill)
        for _ in range(self.chance.randrange(1, 60)):
            if time.monotonic() > self.end:
                return
            step = self.chance.choice(work)
            try:
                step(session, modules, counter)
            except errors.Lost as error:
                if not error.board or not error.attempt:
                    raise Broken(f"an error without board or advice: {error!r}") from error
                self.done["sessions lost to a fault"] += 1
                return
            self.done[step.__name__] += 1

    def count(
        self, session: Session, modules: dict[str, RemoteModule], counter: RemoteTensor
    ) -> None:
        """The kernel adds one: exactly once when it says so, at most once when it does not."""
        before = int(counter.numpy()[0])
        killer = self.disturb(session) if self.chance.random() < 0.2 else None
        try:
            modules["count"]["count"](counter, timeout=20)
            most = least = before + 1
        except (errors.Crashed, errors.Timeout):
            least, most = before, before + 1
        finally:
            if killer:
                killer.join()
        after = int(counter.numpy()[0])
        if not least <= after <= most:
            raise Broken(f"the counter went from {before} to {after}")

    def crash(
        self, session: Session, modules: dict[str, RemoteModule], counter: RemoteTensor
    ) -> None:
        scratch = session.tensor(BYTES)
        try:
            modules["wild"]["wild"](scratch)
        except errors.Crashed as error:
            if error.signal not in ("SIGSEGV", "SIGKILL"):
                raise Broken(f"a crash by {error.signal}") from error
            return
        raise Broken("a kernel that writes to address 16 went well")

    def loop(
        self, session: Session, modules: dict[str, RemoteModule], counter: RemoteTensor
    ) -> None:
        scratch = session.tensor(BYTES)
        try:
            modules["spin"]["spin"](scratch, timeout=0.05)
        except (errors.Timeout, errors.Crashed):
            return
        raise Broken("an endless loop has ended")

    def echo(
        self, session: Session, modules: dict[str, RemoteModule], counter: RemoteTensor
    ) -> None:
        size = self.chance.randrange(1, 3 << 20)
        array = np.frombuffer(self.chance.randbytes(size), np.uint8)
        if not np.array_equal(session.tensor(array).numpy(), array):
            raise Broken("a tensor came back changed")
        if not np.array_equal(session.tensor(X).numpy(), X):
            raise Broken("a tensor came back changed")

    def kill(
        self, session: Session, modules: dict[str, RemoteModule], counter: RemoteTensor
    ) -> None:
        """The supervisor dies, or the link is cut; rarely, since it costs the session."""
        if self.chance.random() < 0.7:
            return
        process = getattr(session.link.transport, "_child", None)
        if process:
            os.kill(process.pid, signal.SIGKILL)
        else:
            session.link.transport.close()
        try:
            session.ping()
        except errors.Lost:
            raise
        except errors.RpcError as error:
            raise Broken(f"a session without a board says {error!r}") from error

    def disturb(self, session: Session) -> threading.Thread:
        """Kills the session's worker in a moment."""

        def strike() -> None:
            time.sleep(self.chance.random() * 0.003)
            process = getattr(session.link.transport, "_child", None)
            for worker in descendants(process.pid) if process else ():
                try:
                    os.kill(worker, signal.SIGKILL)
                except ProcessLookupError:
                    continue

        thread = threading.Thread(target=strike, daemon=True)
        thread.start()
        return thread


if __name__ == "__main__":
    main()
