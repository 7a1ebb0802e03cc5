"""`mlc-runtime run`: saved models on a board without a laptop."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mlc_deploy as mlc
import runtime_build
from mlc_deploy.artifact.format import digest, read_file, write_file
from mlc_deploy.board.runtime_files import runtime_file
from mlc_deploy.driver.deploy import RUN_SECONDS
from mlc_deploy.graph import BlockBuilder
from tests.artifact.models import digits, expected, images
from tests.runtime.board import model_of, module_of

Golden = Callable[..., None]
LOCAL = "x86_64"
TARGETS = {"x86_64": "x86_64", "aarch64": "aarch64", "arm": "armv7a"}


def run(*arguments: str | Path, at: Path, machine: str = LOCAL) -> subprocess.CompletedProcess[str]:
    command = [*emulated(machine), str(runtime_file(machine)), "run", *map(str, arguments)]
    return subprocess.run(command, cwd=at, capture_output=True, text=True, timeout=60)


def emulated(machine: str) -> list[str]:
    """What runs a program of the machine here."""
    if machine == LOCAL:
        return []
    emulator = shutil.which(f"qemu-{machine}")
    if emulator is None:
        pytest.skip("no QEMU here: apt install qemu-user")
    return [emulator]


def said_of_box(machine: str) -> str:
    """The line of a run where the system cannot hold the model's code: QEMU, as old kernels."""
    if machine == LOCAL:
        return ""
    lacking = r"warning: this system's sandbox lacks syscalls, files, tcp, signals, [a-z, ]+; "
    return Matching(lacking + r"try: only models from people you trust\n")


class Matching(str):
    """A pattern that equals the texts that it matches."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and re.fullmatch(str(self), other) is not None

    __hash__ = str.__hash__


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The digits and their images, in an empty folder."""
    digits().save(tmp_path / "digits.mlc")
    np.save(tmp_path / "image.npy", images())
    return tmp_path


@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "arm"])
def test_same_as_the_reference(machine: str, tmp_path: Path) -> None:
    digits(machine).save(tmp_path / "digits.mlc")
    np.save(tmp_path / "image.npy", images())
    given = ("digits.mlc", "--input", "image=image.npy", "--output", "results", "--threads", "1")
    ended = run(*given, at=tmp_path, machine=machine)
    assert (ended.returncode, ended.stderr) == (0, said_of_box(machine))
    assert ended.stdout == "results/probability.npy\n"
    assert os.listdir(tmp_path / "results") == ["probability.npy"]
    right = expected()["probability"]
    got = np.load(tmp_path / "results" / "probability.npy")
    assert got.dtype == right.dtype and got.shape == right.shape
    np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-6)


def test_timed(folder: Path) -> None:
    ended = run("digits.mlc", "--input", "image.npy", "--time", at=folder)
    assert ended.returncode == 0 and ended.stderr == ""
    match = re.fullmatch(
        r"time: median (\S+) ms, p95 (\S+) ms, deviation (\S+) ms, least (\S+) ms, most (\S+) ms, "
        r"(\d+) samples\nconditions: (.*)\n",
        ended.stdout,
    )
    assert match
    median, p95, mad, least, most = map(float, match.groups()[:5])
    assert 0 < least <= median <= p95 <= most and 0 <= mad <= most - least
    assert 3 <= int(match[6]) <= 20
    conditions = dict(re.findall(r"(\w+) (\d+ to \d+)", match[7]))
    began, ended_at = map(int, conditions["cpu_us"].split(" to "))
    assert ended_at - began > 0.9e3 * 20 * int(match[6]) / 4  # of the time, when others work too


def test_timed_on_the_core_that_is_named(folder: Path) -> None:
    for core in os.sched_getaffinity(0):
        given = ("digits.mlc", "--input", "image.npy", "--time", "--cores", str(core))
        ended = run(*given, at=folder)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert f"core {core} to {core}," in ended.stdout


def test_outputs_replace_those_of_before(folder: Path) -> None:
    (folder / "results").mkdir()
    (folder / "results" / "probability.npy").write_bytes(b"from before")
    for _ in range(2):
        ended = run("digits.mlc", "--input", "image.npy", "--output", "results", at=folder)
        assert ended.returncode == 0
    assert os.listdir(folder / "results") == ["probability.npy"]
    assert np.load(folder / "results" / "probability.npy").shape == (16, 10)


DTYPES = ["float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16",
          "uint32", "uint64", "bool"]  # fmt: skip


def identity(types: dict[str, tuple[str, tuple[int, ...]]]) -> mlc.CompiledModel:
    """A model whose outputs are its inputs, under names that no file has."""
    builder = BlockBuilder("main")
    params = [builder.param(name, shape, dtype) for name, (dtype, shape) in types.items()]
    outputs = [f"out/{name} é" for name in types]
    return mlc.compile(builder.finish(params, outputs), "x86_64")


def test_every_dtype_and_shape(tmp_path: Path) -> None:
    shapes: list[tuple[int, ...]] = [(2, 3), (5,), (), (1, 2, 3, 4)]
    types = {dtype: (dtype, shapes[n % len(shapes)]) for n, dtype in enumerate(DTYPES)}
    identity(types).save(tmp_path / "m.mlc")
    rng = np.random.default_rng(0)
    given: dict[str, NDArray[Any]] = {}
    for number, (name, (dtype, shape)) in enumerate(types.items()):
        given[name] = rng.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)
        version = ((1, 0), (2, 0), (3, 0))[number % 3]
        with open(tmp_path / f"{name}.npy", "wb") as file:
            np.lib.format.write_array(file, given[name], version)
    inputs = [word for name in types for word in ("--input", f"{name}={name}.npy")]
    ended = run("m.mlc", *inputs, "--output", "out", at=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    for name, array in given.items():
        got = np.load(tmp_path / "out" / f"out_{name}_é.npy")
        assert got.dtype == array.dtype and got.shape == array.shape
        np.testing.assert_array_equal(got, array)


def test_refusals(folder: Path, golden: Golden) -> None:
    image = images()
    np.save(folder / "double.npy", image.astype(np.float64))
    np.save(folder / "one.npy", image[:1])
    np.save(folder / "fortran.npy", np.asfortranarray(image))
    np.save(folder / "big.npy", image.astype(">f4"))
    np.save(folder / "text.npy", np.array(["a", "b"]))
    np.save(folder / "objects.npy", np.array([{}], object))
    good = (folder / "image.npy").read_bytes()
    (folder / "cut.npy").write_bytes(good[:-1])
    (folder / "header.npy").write_bytes(good[:50])
    (folder / "later.npy").write_bytes(good[:6] + b"\x04" + good[7:])
    (folder / "odd.npy").write_bytes(good.replace(b"'descr'", b"'names'"))
    (folder / "empty.npy").touch()
    (folder / "file").touch()
    model = (folder / "digits.mlc").read_bytes()
    (folder / "cut.mlc").write_bytes(model[:-1])
    (folder / "longer.mlc").write_bytes(model + b"!")
    (folder / "version.mlc").write_bytes(model[:8] + b"\x01" + model[9:])
    (folder / "manifest.mlc").write_bytes(model[:50] + b"!" + model[51:])
    (folder / "weights.mlc").write_bytes(model[:-1] + b"!")
    (folder / "object.mlc").write_bytes(model[:5000] + b"!" + model[5001:])
    digits("aarch64").save(folder / "aarch64.mlc")
    manifest, (code, weights) = read_file(folder / "digits.mlc")
    (program,) = manifest["programs"]

    def write(name: str, **changes: object) -> None:
        blobs = [code.content, weights.content]
        write_file(folder / name, {"programs": [program | changes]}, blobs)

    write("features.mlc", features=["sse2", "unheard-of"])
    write("swapped.mlc", object=1, weights=0)
    write("without.mlc", weights=None)
    write("nothing.mlc", object=7)
    write_file(folder / "none.mlc", {"programs": []}, [])
    cases = [
        ["there.mlc"], ["."], ["image.npy"], ["empty.npy"],
        *([f"{name}.mlc"] for name in ("cut", "longer", "version", "manifest", "weights", "object",
                                      "aarch64", "features", "swapped", "without", "nothing",
                                      "none")),
        ["digits.mlc"],
        ["digits.mlc", "--input", "imago=image.npy"],
        ["digits.mlc", "--input", "image.npy", "--input", "image=image.npy"],
        *(["digits.mlc", "--input", f"{name}.npy"] for name in
          ("there", "double", "one", "fortran", "big", "text", "objects", "cut", "header", "later",
           "odd", "empty")),
        ["digits.mlc", "--input", "."],
        ["digits.mlc", "--input", "image.npy", "--output", "file"],
        ["digits.mlc", "--input", "image.npy", "--output", "there/results"],
        [], ["--time"], ["digits.mlc", "again.mlc"], ["digits.mlc", "--input"],
        ["digits.mlc", "--output"], ["digits.mlc", "--threads", "257"], ["digits.mlc", "--faster"],
        ["digits.mlc", "--cores"], ["digits.mlc", "--cores", "2-1"],
        ["digits.mlc", "--cores", "slow"],  # this machine has none
        *(["digits.mlc", "--timeout", text] for text in ("0", "-1", "1.5", "1000001", "")),
    ]  # fmt: skip
    told = []
    for case in cases:
        ended = run(*case, at=folder)
        assert ended.stdout == ""
        said = re.sub(r"of \d+ bytes", "of n bytes", ended.stderr)
        told.append(f"$ mlc-runtime run {' '.join(case)}\n{said}-> {ended.returncode}")
    golden("\n\n".join(told), "run_command_refusals")


def test_which_input_is_meant(tmp_path: Path) -> None:
    identity({"a": ("int8", (2,)), "b": ("int8", (2,))}).save(tmp_path / "m.mlc")
    np.save(tmp_path / "x.npy", np.zeros(2, np.int8))
    told = [run("m.mlc", *given, at=tmp_path).stderr for given in (
        ("--input", "x.npy"), ("--input", "a=x.npy"), ("--input", "b=x.npy", "--input", "a=x.npy"),
    )]  # fmt: skip
    assert told == [
        "error: the model has 2 inputs, and --input x.npy does not say which; "
        "try: --input NAME=x.npy, with NAME one of a, b\n",
        "error: input 'b' is missing; try: --input b=FILE.npy\n",
        "",
    ]


def running_sum(to: Path, machine: str) -> mlc.CompiledModel:
    """sum_out = sum_in + k * x, and its double."""
    bb = BlockBuilder("main")
    x, k, total = (bb.param(n, (1, 20)) for n in ("x", "k", "sum_in"))
    after = bb.emit("add", total, bb.emit("multiply", k, x))
    twice = bb.emit("add", after, after)
    function = bb.finish([twice, after], ["twice", "sum_out"])
    made = mlc.compile(function, TARGETS[machine], states={"sum_in": "sum_out"})
    made.save(to / "sum.mlc")
    np.save(to / "k.npy", np.full((1, 20), 0.5, np.float32))
    return made


@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "arm"])
def test_stream(machine: str, tmp_path: Path) -> None:
    """Frames come by standard input, results go to standard output, and the state goes on, from
    the last run's file, too."""
    running_sum(tmp_path, machine)
    frames = np.random.default_rng(0).uniform(-1, 1, (50, 1, 20)).astype(np.float32)
    words = ["run", "sum.mlc", "--stream", "--input", "k=k.npy", "--threads", "1"]
    command = [str(runtime_file(machine)), *words, "--output", "out"]
    command = [*emulated(machine), *command]
    right = np.cumsum(frames * np.float32(0.5), axis=0)
    ended = subprocess.run(command, cwd=tmp_path, input=frames[:30].tobytes(), capture_output=True)
    assert (ended.returncode, ended.stderr.decode()) == (0, said_of_box(machine))
    got = np.frombuffer(ended.stdout, np.float32).reshape(30, 1, 20)
    np.testing.assert_allclose(got, 2 * right[:30], rtol=1e-4, atol=1e-5)
    assert sorted(os.listdir(tmp_path / "out")) == ["sum_out.npy", "twice.npy"]
    shutil.move(tmp_path / "out" / "sum_out.npy", tmp_path / "state.npy")
    ended = subprocess.run(
        [*command, "--input", "sum_in=state.npy"], cwd=tmp_path, input=frames[30:].tobytes(),
        capture_output=True,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr.decode()) == (0, said_of_box(machine))
    got = np.frombuffer(ended.stdout, np.float32).reshape(20, 1, 20)
    np.testing.assert_allclose(got, 2 * right[30:], rtol=1e-4, atol=1e-5)


def endless(to: Path) -> None:
    """A model whose loop takes minutes, and its input."""
    builder = BlockBuilder("main")
    x = builder.param("x", (4,))

    def step(_: object, states: list[Any], __: object) -> Any:
        return [builder.emit("add", states[0], states[0])], []

    ends, _ = builder.emit_loop((1 << 31) - 1, [x], step)
    mlc.compile(builder.finish(ends, ["y"]), LOCAL).save(to / "m.mlc")
    np.save(to / "x.npy", np.ones(4, np.float32))


@pytest.mark.parametrize("how", ["", "--time", "--stream"])
def test_a_loop_that_never_ends_meets_its_deadline(how: str, tmp_path: Path) -> None:
    endless(tmp_path)
    given = () if how == "--stream" else ("--input", "x.npy")
    command = [str(runtime_file(LOCAL)), "run", "m.mlc", *given, "--timeout", "1"]
    began = time.monotonic()
    ended = subprocess.run(
        [*command, *filter(None, [how])], cwd=tmp_path, input=bytes(16), capture_output=True,
        timeout=60,
    )  # fmt: skip
    assert time.monotonic() - began >= 1
    assert re.fullmatch(
        rb"error: kernel 'add' \(layer 'add\w*', call \d\) did not end within 1 s; try: --timeout "
        rb"with more seconds, if it is slow rather than stuck\n",
        ended.stderr,
    )
    assert (ended.returncode, ended.stdout) == (1, b"")


def test_a_deadline_without_being_asked() -> None:
    text = (Path(runtime_build.ROOT) / "device_runtime/src/run_command.h").read_text()
    (seconds,) = re.findall(r"RUN_SECONDS = (\d+)", text)
    assert int(seconds) == RUN_SECONDS


FOREIGN = "\x1b]0;title\x07\x9b31m\u202ename\nü\x7f"
ESCAPED = r"\x1b]0;title\x07\xc2\x9b31m\xe2\x80\xaename\x0aü\x7f"


def test_names_of_the_file_are_escaped(tmp_path: Path) -> None:
    """In every message that has one, and in the names of files."""
    builder = BlockBuilder("main")
    x, y = (builder.param(f"{name}{FOREIGN}", (2,), "int8") for name in "xy")
    made = mlc.compile(builder.finish([x, y], [f"{n}{FOREIGN}" for n in "ab"]), LOCAL)
    made.save(tmp_path / "m.mlc")
    np.save(tmp_path / "i.npy", np.zeros(2, np.int8))
    np.save(tmp_path / "f.npy", np.zeros(2, np.float32))
    mine, other = (f"{name}{FOREIGN}=i.npy" for name in "xy")
    said = [
        run("m.mlc", *given, at=tmp_path).stderr
        for given in (
            ("--input", mine), ("--input", mine, "--input", mine), ("--input", "z=i.npy"),
            ("--input", f"x{FOREIGN}=f.npy"),
        )
    ]  # fmt: skip
    assert said[0] == f"error: input 'y{ESCAPED}' is missing; try: --input y{ESCAPED}=FILE.npy\n"
    assert said[1] == f"error: input 'x{ESCAPED}' is given twice\n"
    assert said[2] == f"error: the model has no input 'z'; try: x{ESCAPED}, y{ESCAPED}\n"
    assert all(text.rstrip("\n").isprintable() for text in said)
    ended = run("m.mlc", "--input", mine, "--input", other, "--output", "out", at=tmp_path)
    assert ended.returncode == 0
    files = [f"{n}__0_title___31m___name_ü_.npy" for n in "ab"]
    assert sorted(os.listdir(tmp_path / "out")) == files
    assert ended.stdout == "".join(f"out/{file}\n" for file in files)


@pytest.fixture(scope="module")
def by_gcc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program as a user builds it, with the C library of this machine."""
    if shutil.which("gcc") is None or shutil.which("make") is None:
        pytest.skip("no gcc and make here: apt install gcc make")
    to = tmp_path_factory.mktemp("gcc") / "mlc-runtime"
    command = [
        "make",
        "-C",
        str(Path(runtime_build.ROOT) / "device_runtime"),
        "CC=gcc",
        f"OUT={to}",
    ]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return to


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_of_another_c_library(threads: int, by_gcc: Path, folder: Path) -> None:
    words = ["digits.mlc", "--input", "image.npy", "--output", "out", "--threads", str(threads)]
    ended = subprocess.run(
        [by_gcc, "run", *words], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    got = np.load(folder / "out" / "probability.npy")
    np.testing.assert_allclose(got, expected()["probability"], rtol=1e-4, atol=1e-6)


def test_stream_refusals(tmp_path: Path, golden: Golden) -> None:
    running_sum(tmp_path, LOCAL)
    told = []
    for frames, given in (
        (b"", ["--input", "k=k.npy"]), (bytes(81), ["--input", "k=k.npy"]),
        (bytes(80), ["--input", "k=k.npy", "--input", "x=k.npy"]),
        (bytes(80), ["--input", "k=k.npy", "--time"]), (b"", ["--input", "twice=k.npy"]),
    ):  # fmt: skip
        command = [str(runtime_file(LOCAL)), "run", "sum.mlc", "--stream", *given]
        ended = subprocess.run(command, cwd=tmp_path, input=frames, capture_output=True)
        words = " ".join(command[1:])
        out = f"{len(ended.stdout)} bytes of results"
        told.append(f"$ {words}\n{ended.stderr.decode()}{out}, -> {ended.returncode}")
    golden("\n\n".join(told), "run_command_stream")


def test_a_kernel_that_crashes_in_a_stream(tmp_path: Path) -> None:
    weights = bytes(256)
    described = model_of(weights)
    described["calls"][2] = [2, "features.3", [[0, 0, 0, 64]]]
    code = module_of("add64", "double64", "wild", machine=LOCAL, says={"model": described})
    program = {
        "level": "base", "target": LOCAL, "machine": LOCAL, "features": [], "object": 0,
        "weights": 1, "indices": {},
    }  # fmt: skip
    write_file(tmp_path / "m.mlc", {"programs": [program]}, [code, weights])
    command = [str(runtime_file(LOCAL)), "run", "m.mlc", "--stream"]
    ended = subprocess.run(command, cwd=tmp_path, input=bytes(512), capture_output=True)
    where = b"error: SIGSEGV in kernel 'wild' (layer 'features.3', call 2)"
    assert ended.returncode == 1 and ended.stderr.startswith(where), ended.stderr
    assert ended.stdout == b""


@pytest.mark.parametrize("kernel", ["wild", "status"])
def test_kernels_that_go_wrong(kernel: str, tmp_path: Path) -> None:
    """The layer is named, whether a kernel gives a status or crashes."""
    weights = bytes(256)
    described = model_of(weights)
    described["calls"][2] = [2, "features.3", [[0, 0, 0, 64]]]
    code = module_of("add64", "double64", kernel, machine="x86_64", says={"model": described})
    program = {
        "level": "base", "target": "x86_64", "machine": "x86_64", "features": [], "object": 0,
        "weights": 1, "indices": {},
    }  # fmt: skip
    assert described["weights_hash"] == digest(weights)
    write_file(tmp_path / "m.mlc", {"programs": [program]}, [code, weights])
    np.save(tmp_path / "x.npy", np.ones((1, 64), np.float32))
    ended = run("m.mlc", "--input", "x.npy", "--output", "out", at=tmp_path)
    signal = "SIGSEGV in " if kernel == "wild" else ""
    where = f"error: {signal}kernel '{kernel}' (layer 'features.3', call 2)"
    assert ended.returncode == 1 and ended.stderr.startswith(where), ended.stderr
    assert not (tmp_path / "out").exists()
