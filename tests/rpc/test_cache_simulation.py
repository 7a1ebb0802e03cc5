"""The caches of QEMU's plugin, held against a model of them that is easy to believe."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DRIVER = r"""
#include "cache.h"
#include <inttypes.h>
#include <stdio.h>
int main(int argc, char **argv) {
    if (argc != 2 || !caches_configure(argv[1])) return puts("no caches"), 1;
    uint64_t address;
    while (scanf("%" SCNx64, &address) == 1) caches_access(address);
    for (int i = 0; i < caches_count(); i++) printf("%" PRIu64 "\n", caches_misses(i));
}
"""


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no gcc or clang here; try: apt-get install gcc libc6-dev")
    folder = tmp_path_factory.mktemp("caches")
    source, program = folder / "driver.c", folder / "driver"
    source.write_text(DRIVER)
    plugin = ROOT / "device_runtime" / "qemu_plugin"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{plugin}", "-fsanitize=undefined"]
    command = [compiler, *flags, str(source), str(plugin / "cache.c"), "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def simulated(program: Path, option: str, addresses: Sequence[int]) -> list[int]:
    text = "\n".join(f"{a:x}" for a in addresses)
    done = subprocess.run([program, option], input=text, capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.split()]


def expected(caches: Sequence[tuple[int, int]], addresses: Sequence[int]) -> list[int]:
    """Lists of lines by set, the last used at the end; pages numbered as they come."""
    pages: dict[int, int] = {}
    state: list[dict[int, list[int]]] = [{} for _ in caches]
    misses = [0] * len(caches)
    for address in addresses:
        page = pages.setdefault(address >> 12, len(pages))
        line = page << 6 | (address >> 6) & 63
        for number, (size, ways) in enumerate(caches):
            lines = state[number].setdefault(line % (size // 64 // ways), [])
            hit = line in lines
            if hit:
                lines.remove(line)
            lines.append(line)
            del lines[:-ways]
            misses[number] += not hit
            if number == 0 and hit:
                break
    return misses


def test_random_accesses(simulator: Path) -> None:
    draw = random.Random(7)
    bases = [draw.randrange(1 << 40) for _ in range(5)]
    addresses = [draw.choice(bases) + draw.randrange(1 << 15) for _ in range(20000)]
    caches = [(2048, 4), (4096, 2), (16384, 16)]
    found = simulated(simulator, "2048x4:4096x2:16384x16", addresses)
    assert found == expected(caches, addresses) and len(set(found)) == 3


def test_where_the_host_puts_memory_does_not_matter(simulator: Path) -> None:
    draw = random.Random(8)
    walk = [draw.randrange(1 << 18) for _ in range(5000)]
    moved = [a ^ 0x7F12_3456_7000 for a in walk]
    option = "32768x4:262144x16"
    assert simulated(simulator, option, walk) == simulated(simulator, option, moved)


def test_many_pages(simulator: Path) -> None:
    """More than the table of pages holds at first: each line is new."""
    addresses = [n << 12 for n in range(10000)]
    assert simulated(simulator, "32768x4", addresses) == [10000]


@pytest.mark.parametrize(
    "option", ["", "x", "32768", "32768x", "32768x4:", "32768x4,", "100x4", "0x4", "32768x0",
               "49152x4", "32768x64", ":".join(["32768x4"] * 9)],
)  # fmt: skip
def test_what_describes_no_caches(simulator: Path, option: str) -> None:
    done = subprocess.run([simulator, option], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "no caches\n")
