"""A whole board in QEMU, and what can happen to one: reset, hang, link loss, power loss."""

from __future__ import annotations

import gzip
import json
import shutil
import socket
import stat
import subprocess
import time
from pathlib import Path
from typing import Any, Self

from mlc_rpc.ssh import open_shell
from mlc_rpc.ssh_config import resolve
from mlc_rpc.ssh_scripts import script
from mlc_rpc.transport import SshUrl, parse_url
from tests.machine.image import Entry, Image, archive, text_file

BOOT_SECONDS = 60.0
SHELL_SECONDS = 20.0
DISK_BYTES = 64 << 20


class Machine:
    """One QEMU process, whose ssh port is forwarded to `port`. Use it as a context.

    What it keeps on its disk outlives a loss of power; everything else is as new after each start.
    """

    def __init__(self, image: Image, folder: Path, user_key: str) -> None:
        self.image, self.folder = image, folder
        self.disk = folder / "disk"
        self.log = folder / "console"
        with self.disk.open("wb") as disk:
            disk.truncate(DISK_BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(self.disk)], check=True, capture_output=True)
        own = [
            Entry("root", stat.S_IFDIR | 0o700),
            Entry("root/.ssh", stat.S_IFDIR | 0o700),
            text_file("root/.ssh/authorized_keys", user_key, 0o600),
        ]
        self.initramfs = folder / "initramfs"
        base = image.initramfs.read_bytes()
        padded = base + bytes(-len(base) % 4)
        self.initramfs.write_bytes(padded + gzip.compress(archive(own)))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.power_on()
        return self

    def __exit__(self, *_: object) -> None:
        self.power_off()

    @property
    def url(self) -> str:
        return f"ssh://root@127.0.0.1:{self.port}"

    @property
    def known_host(self) -> str:
        return f"[127.0.0.1]:{self.port} {self.image.host_key}\n"

    def power_on(self) -> None:
        control = self.folder / "control"
        control.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            [
                "qemu-system-aarch64", "-M", "virt", "-cpu", "cortex-a72", "-smp", "2",
                "-m", "512", "-nodefaults", "-display", "none",
                "-kernel", str(self.image.kernel), "-initrd", str(self.initramfs),
                "-append", "console=ttyAMA0 quiet panic=1",
                "-netdev", f"user,id=net,hostfwd=tcp:127.0.0.1:{self.port}-:22",
                "-device", "virtio-net-pci,netdev=net,id=card,romfile=",
                "-drive", f"file={self.disk},format=raw,if=none,id=disk",
                "-device", "virtio-blk-pci,drive=disk",
                "-serial", f"file:{self.log}", "-qmp", f"unix:{control},server=on,wait=off",
            ],
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self.await_boot()

    def await_boot(self) -> None:
        """Waits until its ssh server says its name."""
        deadline = time.monotonic() + BOOT_SECONDS
        while time.monotonic() < deadline:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 2) as link:
                    link.settimeout(2)
                    if link.recv(4) == b"SSH-":
                        return
            except OSError:
                pass
            assert self._process and self._process.poll() is None, "QEMU has ended"
            time.sleep(0.2)
        raise AssertionError(f"it does not boot: {self.log.read_text(errors='replace')[-2000:]}")

    def power_off(self) -> None:
        """As if the plug were pulled."""
        if self._process:
            self._process.kill()
            self._process.wait()

    def reset(self) -> None:
        self._order("system_reset")

    def revive(self) -> None:
        """Brings it back from whatever a test that failed has left it in."""
        if self._process and self._process.poll() is None:
            self.go_on()
            self.link(up=True)
            self.await_boot()
        else:
            self.power_on()

    def hang(self) -> None:
        self._order("stop")

    def go_on(self) -> None:
        self._order("cont")

    def link(self, up: bool) -> None:
        self._order("set_link", name="card", up=up)

    def shell(self, command: str) -> str:
        """What a command on the board says."""
        url = parse_url(self.url)
        assert isinstance(url, SshUrl)
        opened = open_shell(resolve(url), SHELL_SECONDS)
        try:
            said = opened.run(script(command), SHELL_SECONDS)
            return said.out + said.complaint
        finally:
            opened.close()

    def _order(self, name: str, /, **arguments: object) -> None:
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(10)
            control.connect(str(self.folder / "control"))
            with control.makefile("rw") as lines:
                lines.readline()  # the greeting
                for order in ({"execute": "qmp_capabilities"}, _order_of(name, arguments)):
                    lines.write(json.dumps(order) + "\n")
                    lines.flush()
                    answer: dict[str, Any] = {}
                    while "return" not in answer:  # events come in between
                        answer = json.loads(lines.readline())
                        assert "error" not in answer, answer


def _order_of(name: str, arguments: dict[str, object]) -> dict[str, object]:
    return {"execute": name, "arguments": arguments} if arguments else {"execute": name}


def missing_tools() -> list[str]:
    """Debian packages that are needed and not there."""
    needed = {
        "qemu-system-aarch64": "qemu-system-arm",
        "qemu-aarch64": "qemu-user",
        "mkfs.ext4": "e2fsprogs",
        "ssh-keygen": "openssh-client",
    }
    path = "/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/bin"
    return [package for tool, package in needed.items() if not shutil.which(tool, path=path)]
