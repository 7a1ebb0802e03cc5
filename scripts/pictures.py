"""Takes the pictures of the README from the product: the report of a run, light and dark.

    python scripts/pictures.py [MODEL]

It runs MODEL (default: the shipped one) for aarch64 on QEMU with --report, and photographs the page
with a headless Chromium. The pictures go to docs/pictures.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.report.browser import browser  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
WIDTH, HEIGHT = 1100, 535
# What the picture shows. Sections above it are laid out while the page scrolls.
IN_SIGHT = (
    "(e => (e.scrollIntoView(), Math.abs(e.getBoundingClientRect().top) < 80))"
    "(document.getElementById('layers'))"
)


def main(arguments: Sequence[str]) -> int:
    PICTURES.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        run = ["mlc-deploy", *arguments, "--target", "aarch64", "--report", str(page)]
        subprocess.run([sys.executable, "-m", "mlc_deploy.cli", *run[1:]], check=True)
        with browser() as chromium:
            for name, dark in (("light", False), ("dark", True)):
                chromium.open(page, WIDTH, HEIGHT, dark)
                chromium.wait(IN_SIGHT)
                (PICTURES / f"report-{name}.png").write_bytes(chromium.screenshot())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
