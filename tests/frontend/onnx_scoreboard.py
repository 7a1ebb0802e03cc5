"""ONNX's backend suite as the public scoreboard runs it: by onnx's own runner, every test of it,
also those whose outputs the compiler computes.

Rewrite the count, with the onnx that the scoreboard has (some minutes):

    pip install --no-deps --target FOLDER onnx==1.22.0
    PYTHONPATH=FOLDER:. python -m tests.frontend.onnx_scoreboard
"""

from __future__ import annotations

import re
import unittest
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from onnx.backend.test import BackendTest

from mlc_deploy import backend

# The version of onnx, the number of tests, and the names of those that fail.
COUNT = Path(__file__).with_name("onnx_scoreboard.txt")


def every(pattern: str = ".") -> Iterator[unittest.TestCase]:
    """The tests of the suite on this machine whose names match."""
    classes: dict[str, Any] = BackendTest(backend.MlcBackend, __name__).test_cases
    for made in classes.values():
        for name in sorted(vars(made)):
            if name.startswith("test_") and name.endswith("_cpu") and re.search(pattern, name):
                yield made(name)


def passes(test: unittest.TestCase) -> bool:
    """Whether a test passes; one that is skipped does not."""
    result = unittest.TestResult()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        test.run(result)
    return result.wasSuccessful() and not result.skipped


def counted() -> tuple[str, int, list[str]]:
    """The version of onnx, the number of tests, and the names of those that fail, from the file."""
    version, count, *failing = COUNT.read_text().split()
    return version, int(count), failing


def main() -> None:
    found = list(every())
    failing = sorted(t.id().rpartition(".")[2][:-4] for t in found if not passes(t))
    COUNT.write_text("\n".join([f"{onnx.__version__} {len(found)}", *failing]) + "\n")
    print(f"{len(found) - len(failing)} of {len(found)} with onnx {onnx.__version__}")


if __name__ == "__main__":
    main()
