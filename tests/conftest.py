"""What every test shares: groups, golden files, and a device runtime built from the sources."""

from __future__ import annotations

import difflib
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import runtime_build

# Groups are markers. The default run leaves them out, since each takes long or needs more than a
# laptop; `--only GROUP` runs one of them, `--all` every test there is.
GROUPS = {
    "schedules": "many random schedules against the unscheduled program",
    "fuzz": "a minute of libFuzzer on all that reads others' bytes (needs clang and llvm)",
    "hostile": "2,000 hostile inputs of every operator with run-time indices, on four targets",
    "sockets": "where each command listens",
    "backends": "thousands of random kernels and models: C with sanitizers, LLVM, both ARMs",
    "numbers": "2^22 float32 numbers through every function; every place of every dtype",
    "patterns": "all 2^32 float32 numbers through every function of one number (hours)",
    "differential": "5,000 random ONNX graphs against onnxruntime",
    "onnx": "ONNX's backend suite, compiled; a sample of it on emulated boards",
    "tflite": "the .tflite files that packages ship, against LiteRT (needs pip and npm)",
    "models": "the models of the field, compiled and run here, two of them on emulated boards",
    "emulated": "the other models of the field, and the third board of some graphs, emulated",
    "quantize": "trained models that packages ship, quantized; counted on emulated boards",
    "detectors": "detectors that torchvision and Ultralytics export, on emulated boards",
    "decoders": "language models of transformers, and text (needs the extras 'decoders', 'text')",
    "encoders": "models of transformers for texts of any length, images, sound (as 'decoders')",
    "torch": "PyTorch programs (needs the extra 'torch')",
    "boards": "boards that are really there, or emulated with a whole kernel",
    "odd": "boards as people have them: shells, ssh servers, links, limits (needs root; Linux)",
    "soak": "a minute of random faults on boards of this machine; 200 Ctrl-C; a gigabyte uploaded",
    "farm": "a whole farm on this machine, with Dask (needs the extra 'farm')",
    "report": "pages of reports in a headless Chromium (needs Debian's chromium)",
    "docs": "the commands of README and docs that take long: tuning, scripts, make",
    "oldest": "the oldest dependencies that pyproject.toml allows; other Pythons (needs pip)",
    "train": "trains the shipped models again (needs the extra 'train')",
}
DEFAULT = "default"

# How long an example takes to draw says something of the machine, not of the test.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

os.environ.setdefault("MLC_VERIFY", "1")  # programs are verified after every primitive and pass

# Reasons why this run is no proof, whatever its tests say: it ends red and names them.
not_green = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mlc-deploy")
    group.addoption("--only", choices=[DEFAULT, *GROUPS], help="run one group of tests")
    group.addoption("--all", action="store_true", help="run every group of tests")
    group.addoption(
        "--minutes", type=float, default=3.0, help="of kills on a farm (tests/farm/test_chaos.py)"
    )
    group.addoption("--regen", action="store_true", help="rewrite the golden files that differ")


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in GROUPS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    config.stash[not_green] = []
    if config.getoption("--regen"):
        config.stash[not_green].append("golden files were rewritten: read git diff, run again")
    if not hasattr(config, "workerinput"):  # the workers of xdist find it done
        config.stash[not_green] += _mend_stale_runtime()
        cache = tempfile.TemporaryDirectory(prefix="mlc-cache-")
        config.add_cleanup(cache.cleanup)
        os.environ["MLC_CACHE_DIR"] = cache.name  # neither the user's kernels nor for the user
    else:
        _share_cores(config, config.workerinput["workercount"])


def _share_cores(config: pytest.Config, processes: int) -> None:
    """Processes that run tests compile by themselves where they are as many as there are cores:
    each process more that compiles would import everything again, for seconds."""
    from mlc_deploy.driver import workers

    share = max(1, workers.cores() // processes)
    patch = pytest.MonkeyPatch()
    patch.setattr("mlc_deploy.driver.processes.cores", lambda: share)
    config.add_cleanup(patch.undo)


def _mend_stale_runtime() -> list[str]:
    """Builds what an editable install does not after a pull; a reason where it cannot."""
    try:
        runtime_build.build(say=lambda line: print(line, flush=True))
    except runtime_build.BuildError as error:
        return [f"the device runtime is not that of the sources: {error}"]
    return []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all"):
        return
    only = config.getoption("--only") or DEFAULT
    chosen: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        (chosen if only in (_groups(item) or {DEFAULT}) else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = chosen


def _groups(item: pytest.Item) -> set[str]:
    return {mark.name for mark in item.iter_markers()} & set(GROUPS)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.stash[not_green] and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reason in terminalreporter.config.stash[not_green]:
        terminalreporter.section("this run does not count", red=True)
        terminalreporter.line(reason)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Compares text with `tests/golden/<test>.txt`: `golden(text)`, `golden(text, "another")`.

    A name of one's own serves tests that compare several texts. `--regen` rewrites what differs.
    """
    folder = Path(__file__).parent / "golden"

    def compare(text: str, name: str = "") -> None:
        path = folder / (re.sub(r"[^\w.-]+", "_", name or request.node.name).strip("_") + ".txt")
        expected = path.read_text() if path.exists() else ""
        actual = text.rstrip("\n") + "\n"
        if actual == expected:
            return
        if request.config.getoption("--regen"):
            path.write_text(actual)
            return
        lines = difflib.unified_diff(
            expected.splitlines(), actual.splitlines(), "golden", "actual", lineterm=""
        )
        diff = "\n".join(lines)
        pytest.fail(f"{path} differs; if intended: pytest --regen\n{diff}", pytrace=False)

    return compare
