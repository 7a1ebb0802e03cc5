"""Readers of files from outside against mutants of them.

    python -m tests.fuzz.files [--mutants 20000 | --minutes 1] [--only FORMAT] [--seed N]

Each mutant is read in a worker process with limits on time and memory. Held: it is read, or refused
with an error of the documented tree whose text is printable; in no case does it take a minute, or a
gigabyte more than the reader has. Prints a row for each format. Exit status 0: all of that held.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from mlc_deploy.cli.errors import MISTAKES, message
from mlc_deploy.driver.confined import Refused
from mlc_deploy.files.npy import Unreadable

MOST_SECONDS = 60  # of CPU time, for one mutant
MOST_MEMORY = 1 << 30  # bytes of address space, beside what the reader has before
DOCUMENTED = (*MISTAKES, Refused, Unreadable)  # commands turn the last two into MlcErrors


@dataclass(frozen=True)
class Format:
    """seeds: valid files. mutate: makes a mutant. read: reads it, from a file. confined: whether
    users' commands read it in a process with limits of its own, which may stop it: such a stop is
    an end in words, too, and comes after `seconds` here."""

    name: str
    seeds: Callable[[], Sequence[bytes]]
    mutate: Callable[[bytes, random.Random], bytes]
    read: Callable[[Path], object]
    suffix: str = ""
    confined: bool = False
    seconds: int = MOST_SECONDS


class Finding(Exception):
    """A mutant that ended in another way; the text says in which."""


def held(format: Format, path: Path) -> str:
    """How reading a file ended. Raises Finding."""
    try:
        format.read(path)
        return "read"
    except DOCUMENTED as error:
        text = message(error) if isinstance(error, MISTAKES) else "a mistake of the file"
        if "mistake in mlc-deploy" in text or not all(map(str.isprintable, text.split("\n"))):
            raise Finding(f"the message is {text!r:.200}") from None
        return type(error).__name__
    except MemoryError:
        if format.confined:
            return "stopped"
        raise Finding("".join(traceback.format_exc().splitlines(True)[-6:])) from None
    except BaseException as error:
        raise Finding("".join(traceback.format_exception(error)[-6:])) from None


def serve(format: Format, mutants: Sequence[bytes], pipe: Connection, begin: int, seed: int,
          folder: str, end: int) -> None:  # fmt: skip
    """A worker: reads mutant after mutant, and says before each that it begins it."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)  # libraries complain there
    path = Path(folder) / f"mutant{format.suffix}"
    held_once = Path(folder) / f"seed{format.suffix}"
    held_once.write_bytes(mutants[0])
    held(format, held_once)  # imports take memory, which is not the mutant's
    limit = _address_space() + MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in range(begin, end):
        try:
            data = mutant(format, mutants, number, seed)
        except Exception:
            pipe.send((number, "FINDING", f"no mutant: {traceback.format_exc()[-400:]}"))
            continue
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        pipe.send((number, None, ""))
        try:
            pipe.send((number, held(format, path), ""))
        except Finding as finding:
            pipe.send((number, "FINDING", str(finding)))
        except MemoryError:
            pipe.send((number, "FINDING", "MemoryError"))


def mutant(format: Format, seeds: Sequence[bytes], number: int, seed: int) -> bytes:
    """Equal arguments give equal bytes."""
    rng = random.Random(f"{format.name} {seed} {number}")
    return format.mutate(seeds[number % len(seeds)], rng)


def fuzz(
    format: Format, mutants: int, seed: int, minutes: float | None = None, begin: int = 0,
) -> tuple[Counter[str], list[str]]:  # fmt: skip
    """How mutants ended, and how often; and what was found."""
    seeds = format.seeds()
    ended, findings = Counter[str](), list[str]()
    until = time.monotonic() + 60 * minutes if minutes else None
    with tempfile.TemporaryDirectory(prefix="mlc-mutants-") as folder:
        while begin < mutants and len(findings) < 20:
            begin = _work(format, seeds, begin, mutants, seed, folder, ended, findings, until)
            if until is not None and time.monotonic() > until:
                break
    return ended, findings


def _work(format: Format, seeds: Sequence[bytes], begin: int, end: int, seed: int, folder: str,
          ended: Counter[str], findings: list[str], until: float | None) -> int:  # fmt: skip
    """Lets a worker read mutants until it dies or all are read; the number of the next one."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    worker = context.Process(target=serve, args=(format, seeds, theirs, begin, seed, folder, end))
    worker.start()
    theirs.close()
    at: int = begin - 1
    why = ""
    try:
        while True:
            if not ours.poll(_patience(format)):
                why = f"it takes more than {format.seconds} s"
                break
            at, how, text = ours.recv()
            if how is not None:
                ended[how] += 1
                if text:
                    findings.append(f"{format.name} --seed {seed} mutant {at}: {text}")
                if at + 1 == end or len(findings) >= 20:
                    return at + 1
                if until is not None and time.monotonic() > until:
                    return at + 1
    except EOFError:
        worker.join(10)
        why = f"its process ended with status {worker.exitcode}"
    finally:
        worker.kill()
        worker.join()
        ours.close()
    if at < begin:
        raise RuntimeError(f"{format.name}: the worker ends before a mutant: {why}")
    if format.confined:
        ended["stopped"] += 1
    else:
        ended["FINDING"] += 1
        findings.append(f"{format.name} --seed {seed} mutant {at}: {why}")
    return at + 1


def _patience(format: Format) -> float:
    """Seconds to wait for a mutant, on a machine that other programs use, too."""
    return float(format.seconds) * (1 if format.confined else 3)


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def main() -> int:
    from tests.fuzz.formats import FORMATS

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mutants", type=int, default=20_000, help="of each format")
    parser.add_argument("--begin", type=int, default=0, help="the number of the first mutant")
    parser.add_argument("--minutes", type=float, help="for all formats together")
    parser.add_argument("--only", action="append", choices=[f.name for f in FORMATS])
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    chosen = [f for f in FORMATS if not options.only or f.name in options.only]
    share = options.minutes / len(chosen) if options.minutes else None
    mutants = 10**9 if share and options.mutants == 20_000 else options.mutants
    print(f"files: seed {options.seed}", flush=True)
    status = 0
    for format in chosen:
        since = time.monotonic()
        ended, findings = fuzz(format, mutants, options.seed, share, options.begin)
        ways = ", ".join(f"{name} {count:,}" for name, count in ended.most_common())
        took = time.monotonic() - since
        print(f"{format.name:<14}{ended.total():>7,} mutants, {took:5.0f} s: {ways}", flush=True)
        for finding in findings:
            status = 1
            print(f"  {finding}", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
