"""Words that a reader of this field would not use, with what to write instead.

    python scripts/words.py [FILE ...]

Without FILE: README, CHANGELOG, CONTRIBUTING, every page of docs, the texts of --help and of
refusals in tests/golden, and what the sources say: string literals, docstrings and comments of the
Python packages and scripts, strings and comments of the C runtime. Prints each place and its
remedy; the exit status is 1 where there is one. Code blocks of pages are not prose and are left
out, and so are strings without a space, which are names. WORDS grows with each word that a reader
stumbled over.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORDS = {
    r"\bdrawn (from|by|at random)|\bdraws? (from|tokens?|by|random|inputs?)\b"
    r"|\b(numbers|inputs|tokens?|ones) (is|are) (not )?drawn|\bbe drawn\b|\bdraw by\b": (
        "random, or sampled"
    ),
    r"\bopen (dimension|extent|length|batch|size|shape|height|width|loop)s?\b": "dynamic",
    r"\b(dimension|length|batch|size)s? (is|are|stays?|may be|left) open\b": "dynamic",
    r"\b(stay|leave)s? (a|the|its) \w+ open\b|\bcannot stay open\b": "makes it dynamic",
    r"\b(each|every|a|the) runs? decides?\b|\bruns? decides? (about|it|them)\b": "dynamic",
    r"\bturns? of (a |the |its |one |all )?(loop|scan|axis|reduction)|\b(every|each|one|next|first|"
    r"second|same|all|whole|its) turns?\b|\bturn (by|to|after) turn\b|\bturn \d"
    r"|\bturns (ahead|along|count)": "iteration",
    r"\bbehind (a|the|its|all|them|each) (prompt|model|layer|text|first|end|nodes?|value|call)\b"
    r"|\b(rows|ones|those|bytes|words?|token) behind\b": "after",
    r"\bdata (say|says|decide|decides|end)\b|\b(decided|known) by the data\b|\bdata decided?\b"
    r"|\b(places|indices|weights|region) that (is|are) data\b": "at run time",
    r"\bsmall integers\b": "int8, or quantized",
    r"\bin earnest\b": "representative",
    r"\bthe right (output|result|class)s?\b": "expected, or correct",
    r"\blikelier\b|\blikeliest\b|\bthe colder\b": "more likely, most likely, temperature",
    r"\blooks? back at\b": "sliding-window attention",
    r"\b(hears?|heard)\b.*\b(seconds|at once|sound)\b|\basked to hear\b": "chunk length, audio",
    r"\bwhat (is|was) said\b|\bwrites? what (a|the) (language )?model\b": "transcribe, generate",
    r"\bcompare outputs so\b|\bquantize this way\b|\bsearch this way\b": "name the thing",
    r"\bgo(es)? before work\b": "priority",
    r"\b(board's|boards') time of\b": "share of board time",
    r"\bwould stand\b": "stop sequence",
    r"\bshows what \w+ holds\b": "shows operators, memory and kernels",
    r"\blets? (a decoder|a model) write\b|\basked to write\b": "generates text",
    r"\bis not in order\b": "invalid",
    r"^doubt\s\s|^well\s\s": "warning, ok",
    r"\bsays? nothing of (a|the) board": "not a board's time",
    r"\bmade anew\b|\bwrites it anew\b": "again",
    r"(?<!there\s)\b(is|are) no (?!such |longer |more )[a-z]": "is not a",
    r"\bstands? (twice|once|in a|outside|inside)\b": "occurs, is in",
    r"\bis none of\b": "is not one of",
    r"(\bno|\}) turns?\b": "iterations",
}
C_TEXT = re.compile(r'/\*.*?\*/|"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*', re.DOTALL)
SEAM = re.compile(
    r"[\"']\s*\n\s*[rf]{0,2}[\"']|\n\s*#?\s*"
)  # between lines of comments and literals
BLOCK = re.compile(r"^```.*?^```$|^(?: {4}.*\n)+", re.MULTILINE | re.DOTALL)


def compiled(words: dict[str, str]) -> list[tuple[re.Pattern[str], str]]:
    """A space of a pattern is any white space: a phrase may be on two lines."""
    return [
        (re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE), instead)
        for pattern, instead in words.items()
    ]


PATTERNS = compiled(WORDS)
Texts = Iterator[tuple[int, str]]  # line, text


def pages() -> list[Path]:
    """What users read."""
    return [
        *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "tests" / "golden").glob("cli_help*.txt")),
        *sorted((ROOT / "tests" / "golden").glob("*refus*.txt")),
    ]


def sources() -> list[Path]:
    """What makes messages, and is read by those who change it."""
    here = Path(__file__).resolve()
    python = (
        p for room in ("host", "rpc", "targets", "scripts") for p in (ROOT / room).rglob("*.py")
    )
    c = (
        p
        for room in ("src", "include", "export")
        for p in (ROOT / "device_runtime" / room).glob("*.[ch]")
    )
    return sorted(p for p in (*python, *c) if p.resolve() != here)


def texts(file: Path) -> Texts:
    """What is prose in a file."""
    content = file.read_text(encoding="utf-8")
    match file.suffix:
        case ".py":
            if any(found(SEAM.sub(" ", content))):  # parsing takes ten times as long
                yield from of_python(content)
        case ".c" | ".h":
            for match in C_TEXT.finditer(content):
                text = match[0]
                if " " in text:
                    line = content.count("\n", 0, match.start()) + 1
                    yield line, re.sub(r'"\s*"', "", re.sub(r"\n \*", "\n", text))
        case _:
            yield 1, BLOCK.sub(lambda block: "\n" * block[0].count("\n"), content)


def of_python(content: str) -> Texts:
    """Comments, docstrings, and strings with a space; what an f-string inserts becomes {}."""
    comments: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(content).readline):
        if token.type == tokenize.COMMENT:
            line, text = token.start[0], token.string.lstrip("# ")
            if comments and line == comments[-1][0] + comments[-1][1].count("\n") + 1:
                comments[-1] = comments[-1][0], f"{comments[-1][1]}\n{text}"
            else:
                comments.append((line, text))
    yield from comments
    tree = ast.parse(content)
    inner = set[int]()  # the parts of f-strings, and docstrings
    for node in ast.walk(tree):
        match node:
            case ast.Expr(ast.Constant(str(text)) as constant):
                inner.add(id(constant))
                yield node.lineno, text
            case ast.JoinedStr(values):
                inner |= {id(part) for part in values}
                parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in values)
                yield node.lineno, "".join(map(str, parts))
            case ast.Constant(str(text)) if id(node) not in inner and " " in text:
                yield node.lineno, text


def found(text: str) -> Iterator[tuple[int, str, str]]:
    """The line, the words and the remedy of each place in a text."""
    for pattern, instead in PATTERNS:
        for match in pattern.finditer(text):
            yield text.count("\n", 0, match.start()) + 1, " ".join(match[0].split()), instead


def main(files: Sequence[str]) -> int:
    places = 0
    for file in map(Path, files) if files else (*pages(), *sources()):
        for line, text in texts(file):
            for number, words, instead in found(text):
                places += 1
                print(f"{file}:{line + number - 1}: '{words}': write {instead}")
    return int(places > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
