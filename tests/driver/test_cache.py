"""The cache: what is damaged, unreadable or not to be written is a miss, never an error."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import runtime_build
from mlc_deploy.driver.cache import Cache, user_folder

KEY, OTHER = bytes(range(32)), bytes([0, *range(7, 38)])


def entry(cache: Cache) -> Path:
    (path,) = (p for p in cache.folder.glob("*/*") if p.is_file())
    return path


def test_what_was_put_is_there(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "not" / "yet")
    assert cache.get(KEY) is None
    for content in (b"", b"first", b"second" * 1000):
        cache.put(KEY, content)
        assert cache.get(KEY) == content
    assert cache.get(OTHER) is None
    assert Cache(cache.folder).get(KEY) == b"second" * 1000


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:],
        lambda data: bytes([data[0] ^ 1]) + data[1:],
    ],
    ids=["empty", "cut", "longer", "content", "digest"],
)
def test_a_damaged_entry_is_a_miss(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put(KEY, b"some content")
    path = entry(cache)
    path.write_bytes(damage(path.read_bytes()))
    assert cache.get(KEY) is None
    cache.put(KEY, b"some content")
    assert cache.get(KEY) == b"some content"


def test_another_entry_is_a_miss(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put(KEY, b"some content")
    path = entry(cache)
    path.rename(path.parent / OTHER.hex()[2:])
    assert cache.get(OTHER) is None


def test_a_folder_that_cannot_be_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Permissions would not keep root out, but a file where a folder should be does."""
    (tmp_path / "file").touch()
    cache = Cache(tmp_path / "file" / "kernels")
    with caplog.at_level("DEBUG", "mlc_deploy.driver.cache"):
        cache.put(KEY, b"some content")
        assert cache.get(KEY) is None
    assert [r.getMessage().split(":")[0] for r in caplog.records] == ["not kept", "not read"]


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    cache = Cache(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        cache.put(KEY, b"some content")
    assert cache.get(KEY) is None
    assert not [p for p in tmp_path.rglob("*") if p.is_file()], "nothing half-written stays"


def test_what_was_not_read_for_longest_goes(tmp_path: Path) -> None:
    cache = Cache(tmp_path, most_bytes=4 * 116)
    keys = [bytes([n]) * 32 for n in range(8)]
    for n, key in enumerate(keys[:-1]):
        cache.put(key, bytes(100))
        path = tmp_path / key.hex()[:2] / key.hex()[2:]
        os.utime(path, (1000 + n, 1000 + n))
    assert cache.get(keys[0]) is not None  # so it was read last
    os.utime(tmp_path / "trimmed", (0, 0))
    cache.put(keys[-1], bytes(100))
    assert [key in found for key in keys for found in [present(cache, keys)]] == [
        True, False, False, False, False, True, True, True,
    ]  # fmt: skip


def present(cache: Cache, keys: list[bytes]) -> set[bytes]:
    return {key for key in keys if cache.get(key) is not None}


def test_many_at_once(tmp_path: Path) -> None:
    """Writers, readers and removers of the same entries; nobody reads what nobody wrote."""
    keys = [bytes([n]) * 32 for n in range(4)]

    def use(n: int) -> bool:
        cache = Cache(tmp_path, most_bytes=500)
        key = keys[n % 4]
        cache.put(key, key * (1 + n % 7))
        (tmp_path / "trimmed").unlink(missing_ok=True)
        found = cache.get(key)
        return found is None or found in {key * times for times in range(1, 8)}

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(use, range(400)))


def test_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the device runtime's binaries are kept too, unless a folder of its own is named."""
    for name in ("MLC_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, folder in (
        ("", Path.home() / ".cache"),
        ("LOCALAPPDATA", Path("/local")),
        ("XDG_CACHE_HOME", Path("/xdg")),
    ):
        if name:
            monkeypatch.setenv(name, str(folder))
        assert user_folder() == folder / "mlc-deploy"
        assert runtime_build.cache_folder("digest") == user_folder() / "runtime" / "digest"
    monkeypatch.setenv("MLC_CACHE_DIR", "/own")
    assert user_folder() == Path("/own")


@pytest.mark.skipif(os.name != "posix", reason="needs modes of files")
def test_a_folder_that_others_may_write_to_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = Cache(tmp_path / "kernels")
    cache.put(KEY, b"some content")
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    cache.folder.chmod(0o777)
    again = Cache(cache.folder)
    assert again.get(KEY) is None
    again.put(OTHER, b"other")
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [
        f"the cache {cache.folder} is not used: others may write to it; "
        "try: chown $USER, chmod go-w"
    ]
    cache.folder.chmod(0o755)
    assert Cache(cache.folder).get(KEY) == b"some content" and cache.get(OTHER) is None
    entry(cache).chmod(0o666)
    assert cache.get(KEY) is None


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs root")
def test_another_users_folder_is_not_used(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "kernels")
    cache.put(KEY, b"some content")
    os.chown(entry(cache), 1234, 1234)
    assert cache.get(KEY) is None
    os.chown(entry(cache), 0, 0)
    assert cache.get(KEY) == b"some content"
    os.chown(cache.folder, 1234, 1234)
    assert Cache(cache.folder).get(KEY) is None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_pipe_in_place_of_an_entry_is_a_miss(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put(KEY, b"some content")
    path = entry(cache)
    path.unlink()
    os.mkfifo(path)
    assert cache.get(KEY) is None


@pytest.mark.skipif(os.name != "posix", reason="needs modes of files")
def test_programs_for_boards_that_others_may_have_changed_are_not_taken(tmp_path: Path) -> None:
    for name in runtime_build.NAMES:
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "DIGEST").write_text("d\n")
    tmp_path.chmod(0o755)
    assert runtime_build._keeps(tmp_path, "d") and not runtime_build._keeps(tmp_path, "e")
    (tmp_path / runtime_build.NAMES[0]).chmod(0o666)
    assert not runtime_build._keeps(tmp_path, "d")
    (tmp_path / runtime_build.NAMES[0]).chmod(0o644)
    tmp_path.chmod(0o777)
    assert not runtime_build._keeps(tmp_path, "d")
