"""The build hook: puts the device runtime's binaries into the package.

It asks for zig only when they are stale, so that a build from an sdist, or a second one, needs no
compiler. What it does is `device_runtime/runtime_build.py`; pip shows its progress with `-v`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent / "device_runtime"))

import runtime_build


class RuntimeHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        return [runtime_build.ZIG] if runtime_build.needs_zig(Path(self.root)) else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        runtime_build.build(
            Path(self.root), say=lambda line: print(line, file=sys.stderr, flush=True)
        )
