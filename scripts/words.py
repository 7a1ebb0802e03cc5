"""Words that a reader of this field would not use, in what users read, with what to write instead.

    python scripts/words.py [FILE ...]

Without FILE: README, CHANGELOG, CONTRIBUTING, every page of docs, and the texts of --help in
tests/golden. Prints each place and its remedy; the exit status is 1 where there is one. Code blocks
are not prose and are left out. WORDS grows with each word that a reader stumbled over.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORDS = {
    r"\bdrawn (from|by|at random)|\bdraws? (from|tokens?|by)": "random, or sampled",
    r"\bopen (dimension|extent|length|batch|size|shape|height|width)s?\b": "dynamic",
    r"\b(dimension|length|batch|size)s? (is|are|stays?|may be) open\b": "dynamic",
    r"\bleaves? (a|the|its) \w+ open\b": "makes it dynamic",
    r"\b(each|every|a|the) run decides\b": "dynamic",
    r"\bturns? of (a|the) (loop|scan)|\bin (its|each|every) turn\b|\bturn \d": "iteration",
    r"\bbehind (a|the|its) (prompt|model|layer|text)\b": "after",
    r"\bdata (say|says|decide|decides|end)\b|\b(decided|known) by the data\b": "at run time",
    r"\bsmall integers\b": "int8, or quantized",
    r"\bin earnest\b": "representative",
    r"\bthe right (output|result|class)s?\b": "expected, or correct",
    r"\blikelier\b|\blikeliest\b|\bthe colder\b": "more likely, most likely, temperature",
    r"\blooks? back at\b": "sliding-window attention",
    r"\bhears?\b.*\bseconds\b": "chunk length",
    r"\bwhat is said\b|\bwrites? what\b": "transcribe, generate",
    r"\bcompare outputs so\b|\bquantize this way\b|\bsearch this way\b": "name the thing",
    r"\bgo(es)? before work\b": "priority",
    r"\b(board's|boards') time of\b": "share of board time",
    r"\bwould stand\b": "stop sequence",
    r"\bshows what \w+ holds\b": "shows operators, memory and kernels",
    r"\blets? (a decoder|a model) write\b": "generates text",
}
PATTERNS = [(re.compile(pattern, re.IGNORECASE), instead) for pattern, instead in WORDS.items()]
BLOCK = re.compile(r"^```.*?^```$|^(?: {4}.*\n)+", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    """What users read."""
    return [
        *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "tests" / "golden").rglob("cli_help*.txt")),
    ]


def found(text: str) -> Iterator[tuple[int, str, str]]:
    """The line, the words and the remedy of each place in a page."""
    prose = BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)
    for number, line in enumerate(prose.splitlines(), 1):
        for pattern, instead in PATTERNS:
            if match := pattern.search(line):
                yield number, match[0], instead


def main(files: Sequence[str]) -> int:
    places = 0
    for page in map(Path, files) if files else pages():
        for number, words, instead in found(page.read_text(encoding="utf-8")):
            places += 1
            print(f"{page}:{number}: '{words}': write {instead}")
    return int(places > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
