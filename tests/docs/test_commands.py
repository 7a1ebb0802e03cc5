"""Every command and every Python block of README and docs runs as it is written.

Commands stand in blocks ```sh, programs in blocks ```python; those of a page run in its order, in a
folder that holds the files that pages speak of. What differs from the page is this alone:

- ssh boards are a real sshd on this machine.
- Searches are short: few trials, one kernel; fuzzing and soaking take seconds.
- Tests are collected, since a test does not run all others.

A comment that says "exit status 1" allows that status, too. Long commands (tune, scripts, make) are
in the group `docs`.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

import mlc_deploy as mlc
from mlc_deploy.tuned import Database
from tests import own_tables
from tests.cli.command import MODELS, Command
from tests.decode.tiny import decoder
from tests.frontend.test_tflite import streaming
from tests.frontend.test_tflite_mutations import image_model
from tests.quantize.nets import pictures, residual
from tests.report.databases import tuned
from tests.rpc import sshd

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = {str(page.relative_to(ROOT)): page for page in PAGES}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TOOLS = r"(mlc-deploy|\./mlc-runtime|scripts/|python|\.venv/bin/|pytest|make|pip) ?"
SSH = re.compile(r"ssh://pi@[\w.]+")
SECONDS = 600


@dataclass(frozen=True)
class Line:
    """A command: its words, what its environment has besides, whether it may end with 1."""

    text: str
    words: tuple[str, ...]
    env: dict[str, str]
    may_fail: bool

    @property
    def is_long(self) -> bool:
        return "tune" in self.words[:2] or not self.words[0].startswith(("mlc-deploy", "./", "cd"))


def parsed(text: str) -> Line:
    words = shlex.split(text, comments=True)
    env: dict[str, str] = {}
    while "=" in words[0]:
        name, _, env[name] = words.pop(0).partition("=")
    return Line(text, tuple(words), env, "exit status 1" in text)


def blocks(page: Path) -> list[tuple[str, str]]:
    return [(m[1], m[2]) for m in BLOCK.finditer(page.read_text()) if m[1] in ("sh", "python")]


def lines_of(page: Path) -> list[Line]:
    texts = [line for kind, text in blocks(page) if kind == "sh" for line in text.splitlines()]
    return [parsed(text) for text in texts if text.strip()]


def test_commands_stand_in_blocks_that_run() -> None:
    """Elsewhere in a page no line of code is a command. Transcripts begin with $."""
    for page in PAGES:
        rest = BLOCK.sub("", page.read_text())
        found = re.findall(rf"^ {{4}}{TOOLS}.*$", rest, re.MULTILINE)
        assert found == [], page


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sshd.Server | None]:
    if not sshd.is_here():
        yield None
        return
    with sshd.running(tmp_path_factory.mktemp("sshd")) as running:
        running.trust()
        yield running


def relu(file: str, shape: list[int | str], op: str = "Relu", domain: str = "") -> None:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"], domain=domain)], "graph",
        [value("x", TensorProto.FLOAT, shape)], [value("y", TensorProto.FLOAT, shape)],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), file)


def stream(file: str) -> None:
    """y = h_in + x, which is h_out, too."""
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Add", ["x", "h_in"], ["h_out"]),
             helper.make_node("Neg", ["h_out"], ["y"])]  # fmt: skip
    inputs = [value(name, TensorProto.FLOAT, [1, 8]) for name in ("x", "h_in")]
    outputs = [value(name, TensorProto.FLOAT, [1, 8]) for name in ("y", "h_out")]
    graph = helper.make_graph(nodes, "graph", inputs, outputs)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), file)


OWN = """def twice(node):
    return node.emit("add", node.input(0), node.input(0))


CONVERTERS = {"my.domain::Twice": twice}
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: sshd.Server | None) -> Path:
    """The folder of a page, with the files that pages speak of."""
    folder = tmp_path / "page"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    if server is not None:
        monkeypatch.setenv("HOME", str(server.home))
    shutil.copy(MODELS / "digits_cnn.onnx", "model.onnx")
    np.save("image.npy", np.load(MODELS / "digits.npz")["image"])
    Path("model.tflite").write_bytes(image_model())
    Path("streaming.tflite").write_bytes(streaming().build())
    relu("dynamic.onnx", ["batch", 3, 8, 8])
    relu("text.onnx", [1, "seq"])
    stream("stream.onnx")
    Path("frames.raw").write_bytes(bytes(320))
    onnx.save(decoder(), "decoder.onnx")
    relu("custom.onnx", [2, 3], "Twice", "my.domain")
    Path("own.py").write_text(OWN)
    Path("release").mkdir()
    shutil.copy(MODELS / "digits_mlp.onnx", "release")
    Path("calib").mkdir()
    with np.load(MODELS / "digits.npz") as data:
        np.save("calib/images.npy", data["image"])
        np.save("labels.npy", data["label"])
    onnx.save(residual(), "camera.onnx")
    Path("photos").mkdir()
    for n, pixels in enumerate(pictures(4)):
        shades = np.clip(pixels.transpose(1, 2, 0) * 60 + 128, 0, 255).astype(np.uint8)
        Image.fromarray(shades).save(f"photos/{n}.png")
    for name in ("tuned.jsonl", "theirs.jsonl", "predicted.jsonl"):
        Path(name).write_text("")
    Database("searched.jsonl").add([tuned(cost, n) for n, cost in enumerate((4e-3, 0.0, 2e-3))])
    return folder


@pytest.fixture(autouse=True)
def tables() -> Iterator[None]:
    with own_tables.restored():
        yield


Runner = Callable[[Line], None]


@pytest.fixture
def runner(mlc_deploy: Command, files: Path, monkeypatch: pytest.MonkeyPatch,
           server: sshd.Server | None) -> Runner:  # fmt: skip
    def run(line: Line) -> None:
        url = server.url if server else ""
        words = [SSH.sub(url, word) for word in line.words]
        allowed = (0, 1) if line.may_fail else (0,)
        if words[0] == "cd":
            monkeypatch.chdir(words[1])
            return
        if words[0] == "mlc-deploy":
            with monkeypatch.context() as patched:
                for name, value in line.env.items():
                    patched.setenv(name, value)
                ended = mlc_deploy(*words[1:], *shortened(words))
            assert ended.status in allowed, f"{line.text}\n{ended.stderr[-3000:]}"
            return
        in_sources = not words[0].startswith("./")
        words = [sys.executable if w in ("python", ".venv/bin/python") else w for w in words]
        if words[0] == "pytest":
            words[:1] = [sys.executable, "-m", "pytest"]
        redirected = any(word in words for word in "<>|")
        words = [*words, *shortened(words)]
        done = subprocess.run(
            " ".join(words) if redirected else words, shell=redirected,
            cwd=ROOT if in_sources else None, timeout=SECONDS, env={**os.environ, **line.env},
            capture_output=True, text=True,
        )  # fmt: skip
        said = done.stdout[-2000:] + done.stderr[-2000:]
        assert done.returncode in allowed, f"{line.text}\n{said}"

    return run


def shortened(words: list[str]) -> list[str]:
    """Options that make a command short: the last one counts."""
    if "tune" in words[:2] and "--help" not in words:
        short = ["--trials", "2", "--batch", "1", "--search", "random", "--only", "max_pool"]
        return short + (["--board", "qemu://cortex-a72"] if "--board" not in words else [])
    if words[0] == "scripts/test" or words[1:3] == ["-m", "pytest"]:
        return ["--collect-only", "-q", "-p", "no:cacheprovider"]
    if words[0] == "scripts/fuzz" or "scripts/soak.py" in words:
        return ["--minutes", "0.05"]
    if words[0] == "scripts/audit":
        return ["--list"]
    if "tests.fuzz.files" in words:
        return ["--mutants", "3", "--begin", "0", "--minutes", "1"]
    if "tests.fuzz.client" in words and "--sessions" in words:
        return ["--sessions", "20"]
    return []


def needs_ssh(text: str) -> bool:
    return bool(SSH.search(text)) and not sshd.is_here()


def run_page(page: Path, files: Path, runner: Runner, everything: bool) -> None:
    names: dict[str, Any] = {"mlc": mlc, "np": np, "x": np.load("image.npy")}
    for kind, text in blocks(page):
        os.chdir(files)
        if kind == "python":
            if "tune.tune_" in text and not everything:
                continue
            exec(compile(text, str(page), "exec"), names)
            continue
        for command in filter(str.strip, text.splitlines()):
            line = parsed(command)
            if line.words[0] == "mlc-deploy" and "compare" in line.words and "yesterday" in command:
                shutil.copy("record.json", "yesterday.json")
            if everything or not line.is_long:
                runner(line)


@pytest.mark.parametrize("name", [n for n, page in NAMES.items() if blocks(page)])
def test_page(name: str, files: Path, runner: Runner) -> None:
    text = NAMES[name].read_text()
    if needs_ssh(text):
        pytest.skip(sshd.WHY_NOT)
    if "import torch" in text:
        pytest.importorskip("torch", reason="PyTorch is not installed: the extra 'torch'")
    run_page(NAMES[name], files, runner, everything=False)


@pytest.mark.docs
@pytest.mark.parametrize(
    "name", [n for n, page in NAMES.items() if any(line.is_long for line in lines_of(page))]
)
def test_long_commands_of_a_page(name: str, files: Path, runner: Runner) -> None:
    run_page(NAMES[name], files, runner, everything=True)


def test_the_table_in_the_readme_is_what_the_demo_prints(mlc_deploy: Command, files: Path) -> None:
    """But for its numbers."""

    def shape(text: str) -> list[str]:
        lines = (" ".join(line.split()) for line in text.split("\n"))
        return [re.sub(r"\d[\d,.]*( [mµ]?s\b)?", "N", line) for line in lines]

    (transcript,) = re.findall(r"^    \$ mlc-deploy (.*?)(?=^\S)", NAMES["README.md"].read_text(),
                               re.MULTILINE | re.DOTALL)  # fmt: skip
    command, _, table = transcript.partition("\n")
    done = mlc_deploy(*command.split())
    assert done.status == 0
    printed = shape(done.stdout)
    told = [line for line in shape(table) if line and line != "..."]
    assert [line for line in told if line not in printed] == []


LINK = re.compile(r"\[[^\]]*\]\(([^)#:]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text()
    assert [link for link in LINK.findall(text) if not (ROOT / link).exists()] == []


def test_the_readme_is_short_and_begins_with_what_to_run() -> None:
    lines = NAMES["README.md"].read_text().splitlines()
    assert len(lines) <= 110
    first = [line.split()[0] for line in lines if line.startswith("scripts/")]
    assert first[:2] == ["scripts/demo", "scripts/test"]
    assert next(i for i, line in enumerate(lines) if line.startswith("scripts/")) < 6
