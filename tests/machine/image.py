"""The files a whole emulated board boots from: Debian's arm64 kernel, and an initramfs of ours.

Packages come through apt with a root of its own, from the sources of this system, so that what the
distribution has today is what is tested; nothing of this system is changed.

    python -m tests.machine.image        make them, or say where they are
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PACKAGES = (
    "busybox-static",
    "dropbear-bin",
    "libc6",
    "libcrypt1",
    "libgmp10",
    "libtomcrypt1",
    "libtommath1",
    "zlib1g",
)
KERNEL = "linux-image-cloud-arm64"  # a package that depends on the newest kernel
# As insmod wants them: each after those it uses.
MODULES = (
    "virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci failover "
    "net_failover virtio_net virtio_blk crc16 libcrc32c crc32c_generic jbd2 mbcache ext4"
).split()
APPLETS = "sh mount mkdir ip insmod mv rm cat chmod uname head od wc cut cp ls id touch sync sleep"
APPLETS += " fallocate poweroff reboot sha256sum kill ps grep sed df du stat umount"
INIT = """#!/bin/sh
export PATH=/bin:/sbin:/usr/bin:/usr/sbin HOME=/root
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
exec < /dev/console > /dev/console 2>&1
mkdir -p /dev/pts /dev/shm /tmp /var/tmp /run /disk
mount -t devpts none /dev/pts
mount -t tmpfs none /dev/shm
chmod 1777 /tmp /var/tmp /dev/shm
for m in @modules@; do [ -f /lib/modules/$m.ko ] && insmod /lib/modules/$m.ko; done
ip link set lo up
ip link set eth0 up
ip addr add 10.0.2.15/24 dev eth0
ip route add default via 10.0.2.2
[ -b /dev/vda ] && mount -t ext4 /dev/vda /disk && mkdir -p /disk/cache && rm -rf /root/.cache \\
    && ln -s /disk/cache /root/.cache
echo board: ready
exec dropbear -F -E -s -r /etc/dropbear/host_key
"""
FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/shells": "/bin/sh\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\n",
}


class ImageError(Exception):
    """The files cannot be made here; says what is missing and what to install."""


@dataclass(frozen=True, slots=True)
class Image:
    """`host_key` is what known_hosts takes: type and key."""

    kernel: Path
    initramfs: Path
    host_key: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, folder or link of an archive."""

    path: str
    mode: int
    content: bytes = b""


def folder() -> Path:
    """Another one when this file changes."""
    base = os.environ.get("XDG_CACHE_HOME")
    version = hashlib.blake2b(Path(__file__).read_bytes(), digest_size=6).hexdigest()
    return (Path(base) if base else Path.home() / ".cache") / "mlc-deploy" / "machine" / version


def image() -> Image:
    """The image in the user's cache, made when it is not there. Raises ImageError."""
    place = folder()
    made = Image(place / "vmlinuz", place / "initramfs", "")
    key = place / "host_key.pub"
    if not (made.kernel.is_file() and made.initramfs.is_file() and key.is_file()):
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
            _make(Path(scratch))
            with contextlib.suppress(OSError):  # another worker was faster
                Path(scratch, "finished").rename(place)
    return Image(made.kernel, made.initramfs, key.read_text().strip())


def archive(entries: Iterable[Entry]) -> bytes:
    """A cpio archive, as the kernel unpacks it; archives may follow one another."""
    out = bytearray()
    for number, entry in enumerate([*entries, Entry("TRAILER!!!", 0)]):
        name = entry.path.encode() + b"\0"
        fields = (number, entry.mode, 0, 0, 1, 0, len(entry.content), 0, 0, 0, 0, len(name), 0)
        out += b"070701" + b"".join(b"%08x" % field for field in fields) + name
        out += bytes(-len(out) % 4) + entry.content
        out += bytes(-len(out) % 4)
    return bytes(out)


def text_file(path: str, text: str, mode: int = 0o644) -> Entry:
    return Entry(path, stat.S_IFREG | mode, text.encode())


# ------------------------------------------------------------------------------------ making it


def _make(scratch: Path) -> None:
    for tool, needs in (("qemu-aarch64", "qemu-user"), ("dpkg-deb", "dpkg"), ("apt-get", "apt")):
        if not shutil.which(tool):
            raise ImageError(f"there is no {tool}; try: apt install {needs}")
    root, finished = scratch / "root", scratch / "finished"
    finished.mkdir()
    for package in _download(scratch):
        _run("dpkg-deb", "-x", str(package), str(root))
    (kernel,) = (root / "boot").glob("vmlinuz-*")
    shutil.copyfile(kernel, finished / "vmlinuz")
    key = root / "host_key"
    emulated = ("qemu-aarch64", "-L", str(root), str(root / "usr/bin/dropbearkey"))
    said = _run(*emulated, "-t", "ed25519", "-f", str(key))
    found = re.search(r"^(ssh-ed25519 \S+)", said, re.MULTILINE)
    assert found, said
    (finished / "host_key.pub").write_text(found[1] + "\n")
    (finished / "initramfs").write_bytes(gzip.compress(archive(_entries(root, key)), 6))


def _entries(root: Path, key: Path) -> list[Entry]:
    folders = (
        "bin etc etc/dropbear dev proc sys root root/.ssh lib lib/modules usr usr/sbin usr/bin"
    )
    entries = [Entry(path, stat.S_IFDIR | 0o755) for path in folders.split()]
    busybox = next(p for p in (root / "bin/busybox", root / "usr/bin/busybox") if p.is_file())
    entries.append(_file("bin/busybox", busybox, 0o755))
    entries += [_link(f"bin/{applet}", "busybox") for applet in APPLETS.split()]
    entries.append(_file("usr/sbin/dropbear", root / "usr/sbin/dropbear", 0o755))
    for library in sorted(_libraries(root)):
        entries.append(_file(f"lib/{library.name}", library, 0o755))
    for module in MODULES:
        for file in (root / "lib/modules").rglob(f"{module}.ko"):
            entries.append(_file(f"lib/modules/{module}.ko", file, 0o644))
    entries += [text_file(path, text) for path, text in FILES.items()]
    entries.append(_file("etc/dropbear/host_key", key, 0o600))
    entries.append(text_file("init", INIT.replace("@modules@", " ".join(MODULES)), 0o755))
    return entries


def _libraries(root: Path) -> set[Path]:
    """What dropbear loads, by the names it asks for; and nsswitch's, which it opens by name."""
    wanted = re.compile(r"(ld-linux-aarch64|libc|libcrypt|libgmp|libtomcrypt|libtommath|libz"
                        r"|libnss_files|libutil)\.so\.\d+")  # fmt: skip
    return {path for path in root.rglob("lib*/**/*.so.*") if wanted.fullmatch(path.name)}


def _file(path: str, source: Path, mode: int) -> Entry:
    return Entry(path, stat.S_IFREG | mode, source.read_bytes())


def _link(path: str, target: str) -> Entry:
    return Entry(path, stat.S_IFLNK | 0o777, target.encode())


def _download(scratch: Path) -> list[Path]:
    """The packages' files, for arm64."""
    apt, packages = scratch / "apt", scratch / "packages"
    for path in ("state/lists/partial", "cache/archives/partial", "log", "parts"):
        (apt / path).mkdir(parents=True)
    packages.mkdir()
    (apt / "status").touch()
    own = Path("/etc/apt/sources.list.d/debian.sources")
    sources = own if own.is_file() else Path("/etc/apt/sources.list")
    if "ubuntu" in sources.read_text():
        raise ImageError("Ubuntu keeps arm64 elsewhere; try: a Debian 12 or 13 container")
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "",
        "Dir::State": apt / "state",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt / "cache",
        "Dir::Log": apt / "log",
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": apt / "parts",
        "Acquire::Languages": "none",
    }
    flags = [f"-o{name}={value}" for name, value in options.items()]
    _run("apt-get", *flags, "-qq", "update")
    depends = _run("apt-cache", *flags, "depends", "--important", KERNEL)
    kernel = re.search(r"Depends: (linux-image-\S+)", depends)
    if not kernel:
        raise ImageError(f"{KERNEL} depends on no kernel: {depends}")
    _run("apt-get", *flags, "-qq", "download", kernel[1], *PACKAGES, cwd=packages)
    return sorted(packages.glob("*.deb"))


def _run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, text=True, capture_output=True)
    if done.returncode != 0:
        raise ImageError(f"{command[0]} failed: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout + done.stderr


if __name__ == "__main__":
    print(image())
