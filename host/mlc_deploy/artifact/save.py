"""`save` writes the compiled programs of a model to a file for boards and `load_model`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mlc_targets import Target
from mlc_targets.object_format import Metadata

from ..errors import ArtifactError
from ..files.mapped import Buffer
from .format import MAX_BLOBS, digest, write_file

if TYPE_CHECKING:
    from mlc_rpc.host_call import HostCall


class Savable(Protocol):
    """The part of a compiled model that is saved."""

    @property
    def name(self) -> str: ...
    @property
    def target(self) -> Target: ...
    @property
    def level(self) -> str: ...
    @property
    def precision(self) -> str: ...
    @property
    def object_bytes(self) -> bytes: ...
    @property
    def weights_bytes(self) -> Buffer: ...
    @property
    def metadata(self) -> Metadata: ...
    @property
    def index_extents(self) -> Mapping[str, int]: ...
    @property
    def host_calls(self) -> Sequence[HostCall]: ...


def save(path: str | Path, model: Savable, levels: Sequence[Savable] = ()) -> Path:
    """Writes a model; `levels` are the same model for CPUs with more features, fewest features
    first. Equal blobs are written once. Equal programs give equal bytes. Raises ArtifactError,
    OSError."""
    from importlib.metadata import version  # here: it imports much, and most runs save nothing

    refuse_host_calls(model)
    blobs: dict[bytes, Buffer] = {}  # by hash; the order is that of their numbers
    programs = [_program(m, blobs) for m in (model, *levels)]
    assert len(blobs) <= MAX_BLOBS
    manifest = {
        "name": model.name,
        "writer": f"mlc-deploy {version('mlc-deploy')}",
        "programs": programs,
    }
    write_file(Path(path), manifest, list(blobs.values()))
    return Path(path)


def refuse_host_calls(model: Savable) -> None:
    """Raises ArtifactError for a model that calls registered functions: a file cannot hold them."""
    if model.host_calls:
        raise ArtifactError(
            "the model calls Python functions, which a board without this machine cannot",
            where=", ".join(call.name for call in model.host_calls),
            mend="operators in their place",
        )


def _program(model: Savable, blobs: dict[bytes, Buffer]) -> dict[str, object]:
    def number(content: Buffer) -> int:
        name = digest(content)
        blobs.setdefault(name, content)
        return list(blobs).index(name)

    return {
        "level": model.level,
        "precision": model.precision,
        "target": str(model.target),
        "machine": model.target.arch,
        "features": sorted(model.target.required_features),
        "object": number(model.object_bytes),
        "weights": number(model.weights_bytes) if len(model.weights_bytes) else None,
        "indices": dict(model.index_extents),
    }
