"""Writes docs/reference/onnx_support.md: which tests of ONNX's backend suite pass, and why the
others do not.

    python scripts/onnx_support.py [--check]

It runs every test through the graph's evaluator; with --check it only says whether the document is
that of these sources, by its exit status. The public scoreboard's count is that of
tests/frontend/onnx_scoreboard.txt, which tests/frontend/onnx_scoreboard.py writes.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.frontend.onnx_scoreboard import counted as scored  # noqa: E402
from tests.frontend.onnx_suite import (  # noqa: E402
    GROUPS,
    SuiteTest,
    cases,
    check_evaluated,
    outcome,
    passing,
)

DOCUMENT = ROOT / "docs" / "reference" / "onnx_support.md"
# Reasons that tell tests apart which the document need not.
KINDS = (
    (r"refused: .* is of type (\w+), which is not supported", r"numbers of type \1"),
    (r"refused: .*quantized numbers of type (\w+).*", r"numbers of type \1"),
    (r"refused: .* is a (sequence|optional|map), not a tensor.*", r"a \1 as input or output"),
    (r"refused: (\S+) \(.*\): (.*)", r"`\1`: \2"),
    (r"refused: (\S+) \([^)]*\)", r"`\1` has no converter"),
    (r"refused: (.*)", r"\1"),
    (r"constant", "the compiler computes all of it, so the test proves nothing"),
    (r"failed: AssertionError Not equal to tolerance.*", "differs beyond the test's tolerance"),
    (r"failed: ValueError setting an array element.*", "a sequence as input or output"),
    (r"failed: (.*)", r"\1"),
)


def kind(answer: str) -> str:
    for pattern, name in KINDS:
        if re.fullmatch(pattern, answer):
            return re.sub(pattern, name, answer)
    return answer


def reasons() -> Mapping[str, list[SuiteTest]]:
    """The tests that are not in the list of what passes, by the reason."""
    found: defaultdict[str, list[SuiteTest]] = defaultdict(list)
    listed = set(passing())
    for name, case in sorted(cases().items()):
        if name not in listed:
            answer = outcome(case, check_evaluated)
            compiled = "differs beyond the test's tolerance, compiled"
            found[compiled if answer == "ok" else kind(answer)].append(case)
    return found


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    head, *rest = ["| " + " | ".join(row) + " |" for row in rows]
    return [head, "|" + "---|" * len(rows[0]), *rest]


def document() -> str:
    listed = passing()
    version, count, failing = scored()
    every = Counter(case.group for case in cases().values())
    counted = Counter(name.partition("/")[0] for name in listed)
    lines = [
        "# ONNX operators",
        "",
        f"This page counts the tests of the backend suite of onnx {onnx.__version__}.",
        "They run through `mlc_deploy.backend` (the standard `onnx.backend.base`), compiled, on",
        "`local://`. Inputs are constants only if their values decide about shapes, axes or",
        "permutations. A test does not count if this makes its outputs constant.",
        "`scripts/onnx_support.py` writes this page.",
        "",
        *table(
            [
                ("group", "tests", "pass"),
                *((g, str(every[g]), str(counted[g])) for g in GROUPS),
            ]
        ),
        "",
        f"By the rule of the public scoreboard, {count - len(failing):,} of {count:,} tests pass",
        f"with onnx {version}. Onnx's own runner counts every test of every group, also those",
        "whose outputs the compiler computes, and those of text, of files of images and of random",
        "numbers without a seed.",
        "`python -m tests.frontend.onnx_scoreboard` counts them.",
        "",
        "## Tests that do not pass",
        "",
    ]
    found = sorted(reasons().items(), key=lambda item: (-len(item[1]), item[0]))
    rows = [("reason", "tests", "operators")]
    for reason, tests in found:
        operators = sorted({case.operator for case in tests})
        rows.append((reason, str(len(tests)), ", ".join(operators)))
    lines += table(rows)
    by_operator = Counter(cases()[name].operator for name in listed)
    lines += ["", "## Operators with tests that pass", ""]
    lines += [", ".join(f"{op} ({count})" for op, count in sorted(by_operator.items()))]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if it differs")
    check = parser.parse_args().check
    text = document()
    if check:
        return int(not DOCUMENT.exists() or DOCUMENT.read_text() != text)
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(text)
    print(DOCUMENT.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
