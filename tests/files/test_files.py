"""Files from outside: what is no file is refused at once, and no size is believed."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mlc_deploy.cli.errors import message
from mlc_deploy.files import npy
from mlc_deploy.files.outside import open_file, read_file
from tests.cli.command import MODELS, Command

CNN = MODELS / "digits_cnn.onnx"
needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes and devices")


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def listening(path: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
    return path


SPECIAL: dict[str, tuple[Callable[[Path], Path], str]] = {
    "pipe": (pipe, "it is a pipe, not a file"),
    "socket": (listening, "it is a socket, not a file"),
    "device": (lambda path: Path("/dev/zero"), "it is a device, not a file"),
    "folder": (lambda path: path.parent, "it is a folder, not a file"),
}


@needs_pipes
@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_file(tmp_path: Path, kind: str) -> None:
    make, what = SPECIAL[kind]
    path = make(tmp_path / "s")
    with pytest.raises(OSError) as error:
        open_file(path)
    assert (error.value.strerror, error.value.filename) == (what, str(path))


def test_a_file_of_another_size_than_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(4 << 40)
    with pytest.raises(OSError, match="it has 4,398,046,511,104 bytes, and at most 1,000 are read"):
        read_file(path, 1000)


@needs_pipes
@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
@pytest.mark.parametrize("place", ["model", "input", "expect", "db", "compare", "from", "boards"])
def test_commands_refuse_what_is_no_file(
    tmp_path: Path,
    place: str,
    kind: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make, what = SPECIAL[kind]
    path = make(tmp_path / "s")
    none = ("--board", "none", "--target", "aarch64")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    arguments: dict[str, tuple[str | Path, ...]] = {
        "model": (path, *none),
        "input": (CNN, "--input", f"image={path}"),
        "expect": (CNN, "--expect", f"probability={path}"),
        "db": (CNN, *none, "--db", path),
        "compare": ("compare", path, path),
        "from": ("tune", CNN, "--db", tmp_path / "db", "--from", path),
        "boards": (CNN, "--board", "kitchen"),
    }
    if place == "boards":
        (tmp_path / "mlc-deploy").mkdir()
        (tmp_path / "mlc-deploy" / "boards.toml").symlink_to(path)
    done = Command(capsys)(*arguments[place])
    assert done.status in (1, 2)
    expected = "a tuning database is a file" if place in ("db", "from") else what
    if (kind, place) == ("device", "boards"):
        expected = "others may write to it"
    assert expected in done.stderr and "Traceback" not in done.stderr
    assert "mistake" not in done.stderr


def header(shape: tuple[int, ...], descr: str = "'<f4'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def unreadable(path: Path, name: str = "x") -> str:
    with pytest.raises(npy.Unreadable) as error, npy.opened(path) as found:
        found[name]
    return str(error.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (header((1 << 40,)) + bytes(64), "its header says 4,398,046,511,104 bytes, and the file"),
        (header((1 << 40, 1 << 40)), "its header says 4,835,703,278,458,516,698,824,704 bytes"),
        (header((-1,)) + bytes(64), npy.NO_ARRAYS),
        (header((3,), "'|O'") + bytes(64), npy.NO_ARRAYS),
        (header((1 << 50,), "'|V0'") + bytes(64), npy.NO_ARRAYS),
        (header((3,), "(" * 4000) + bytes(64), npy.NO_ARRAYS),
        (header((3,))[:20], npy.NO_ARRAYS),
        (b"\x93NUMPY\x07\x00", npy.NO_ARRAYS),
        (b"\x80\x04N.", npy.NO_ARRAYS),
        (b"PK\x03\x04 and nothing more", npy.NO_ARRAYS),
        (b"", npy.NO_ARRAYS),
    ],
)
def test_arrays_that_are_none(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    assert said in unreadable(tmp_path / "x.npy")


def test_arrays_are_read_as_numpy_reads_them(tmp_path: Path) -> None:
    arrays = {
        "x": np.arange(24.0).reshape(2, 3, 4), "f": np.asfortranarray(np.ones((3, 2), np.int8)),
        "none": np.zeros((0, 5)), "scalar": np.array(3, np.uint16),
        "big": np.arange(3, dtype=">i4"),
    }  # fmt: skip
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type, unused-ignore]
        with npy.opened(tmp_path / "a.npz") as found:
            assert set(found) == set(arrays)
            for name, array in arrays.items():
                np.testing.assert_array_equal(found[name], array)
                assert found[name].dtype == array.dtype and found[name].flags.writeable
    np.save(tmp_path / "x.npy", arrays["f"])
    with npy.opened(tmp_path / "x.npy") as one:
        np.testing.assert_array_equal(one, arrays["f"])


def test_an_archive_that_unpacks_to_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert npy.MOST_UNPACKED == 1 << 30
    monkeypatch.setattr(npy, "MOST_UNPACKED", 1 << 24)
    file = tmp_path / "x.npz"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("x.npy", "w", force_zip64=True) as stream:
            stream.write(header(((1 << 24) // 4,)))
            stream.write(bytes(1 << 24))
    assert file.stat().st_size < 1 << 15
    assert "'x' unpacks to 16,777," in unreadable(file)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", header((1 << 40,)) + bytes(64))
    assert "its header says 4,398,046,511,104 bytes" in unreadable(file)


def test_the_whole_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.npy"
    file.write_bytes(header((1 << 40,)) + bytes(64))
    assert Command(capsys)(CNN, "--input", f"image={file}").complaint == (
        "error: its header says 4,398,046,511,104 bytes, and the file has 64\n"
        f"  in:  --input image={file}\n"
        "  try: numpy.save(file, array)\n-> 2"
    )


def test_no_memory() -> None:
    assert message(MemoryError()) == (
        "the memory is too small\n"
        "  try: more memory for this process (ulimit -v, a container's limit), or a smaller model"
    )
    with pytest.raises(MemoryError) as error:
        np.empty(1 << 58, np.uint8)
    assert "the memory is too small: unable to allocate 256. PiB" in message(error.value)


@pytest.mark.skipif(sys.platform != "linux", reason="needs limits of memory")
def test_a_process_without_memory(tmp_path: Path) -> None:
    """An input of 8 GiB, in a sparse file, for a process that may have 4."""
    with (tmp_path / "x.npy").open("wb") as file:
        file.write(header((2 << 30,)))
        file.truncate(file.tell() + (8 << 30))
    run = (
        "import resource, sys; from mlc_deploy.cli.main import main;"
        "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30)); sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", run, str(CNN), "--input", f"image={tmp_path / 'x.npy'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert done.stderr == (
        "error: the memory is too small: unable to allocate 8,589,934,592 bytes for an array\n"
        "  try: more memory for this process (ulimit -v, a container's limit), or a smaller model\n"
    )


# ------------------------------------------------------------------------ nothing is unpickled

SOURCES = [
    p for d in ("host", "rpc", "targets") for p in (Path(__file__).parents[2] / d).rglob("*.py")
]
# Calls that can run what they read, and the files that may have them: of text that was checked or
# made here, and of messages between a process and its own children.
ALLOWED = {
    "pickle.load": {"children.py", "workers.py"},
    "eval": {"layout.py", "interp.py"},
    "exec": {"data.py", "interp.py", "options.py"},
    "torch.load": {"torch.py"},
    "torch.export.load": {"torch.py"},
    "runpy.run_path": {"cli.py"},  # of `python -m mlc_deploy.tvm run`, which runs the user's script
}
RUNNING = (
    "pickle.load", "pickle.loads", "marshal.load", "marshal.loads", "shelve.open", "joblib.load",
    "yaml.load", "dill.load", "cloudpickle.load", "eval", "exec", "np.load", "numpy.load",
    "np.fromfile", "torch.load", "torch.export.load", "runpy.run_path", "np.lib.format.read_array",
    "npy.read_array",
)  # fmt: skip


def runs(source: str) -> set[str]:
    """Which of RUNNING a source calls."""
    import ast

    calls = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call))
    return {text for call in calls if (text := ast.unparse(call.func)) in RUNNING}


def test_no_reader_runs_what_it_reads() -> None:
    assert runs("import pickle\nx = pickle.loads(y)\nz = eval('1')") == {"pickle.loads", "eval"}
    found: dict[str, set[str]] = {}
    for path in SOURCES:
        for call in runs(path.read_text()):
            found.setdefault(call, set()).add(path.name)
    assert found == ALLOWED


def test_pickles_of_torch_are_read_with_weights_only() -> None:
    import ast

    (path,) = (p for p in SOURCES if p.parts[-2:] == ("frontend", "torch.py"))
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
            assert "weights_only=True" in [ast.unparse(k) for k in node.keywords]


def test_streams_end_as_they_say() -> None:
    """A stream that has fewer bytes than its size says is refused, not waited for."""
    stream = io.BytesIO(header((16,)) + bytes(8))
    with pytest.raises(npy.Unreadable):
        npy._array(stream, 1 << 20)
