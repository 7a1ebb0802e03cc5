"""A headless Chromium, driven by its DevTools protocol over two pipes: no package is needed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
PACKAGE = "chromium"
SECONDS = 60.0  # for an answer
READY = "document.readyState === 'complete' && 'ready' in document.documentElement.dataset"


class BrowserError(Exception):
    """What the browser says, or that it says nothing."""


def program() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of a browser. `said` are what it wrote to its console, and exceptions in scripts;
    `asked` are the addresses that it wanted to load."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back = os.fdopen(to, "wb"), os.fdopen(back, "rb")
        self._number = 0
        self._session = ""
        self.said: list[str] = []
        self.asked: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Raises BrowserError."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        self._to.flush()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            found = self._read()
            if found.get("id") == self._number:
                if "error" in found:
                    raise BrowserError(f"{method}: {found['error']}")
                result: dict[str, Any] = found["result"]
                return result
            self._take(found)
        raise BrowserError(f"no answer to {method}")

    def open(self, path: Path, width: int, height: int, dark: bool = False) -> None:
        """Shows a file in a window of this size, and waits until its script has run."""
        self.show(path.as_uri(), width, height, dark)
        self.wait(READY)

    def show(self, url: str, width: int, height: int, dark: bool = False) -> None:
        """Shows a page in a window of this size, and waits until it is loaded."""
        self.said.clear()
        self.asked.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 600)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.call("Page.navigate", url=url)
        self.wait(f"document.readyState === 'complete' && location.href === {json.dumps(url)}")

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression; of a promise what it becomes."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                          awaitPromise=True)  # fmt: skip
        if "exceptionDetails" in found:
            raise BrowserError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait(self, expression: str) -> None:
        """Until an expression is true."""
        end = time.monotonic() + SECONDS
        while not self.run(expression):
            if time.monotonic() > end:
                raise BrowserError(f"never came true: {expression}")
            time.sleep(0.02)

    def click(self, selector: str) -> None:
        """With the mouse, in the middle of an element, which must be on top there."""
        box = self.run(
            f"""(async () => {{
              const element = document.querySelector({json.dumps(selector)});
              element.scrollIntoView({{block: "center", behavior: "instant"}});
              for (let n = 0; n < 2; n++)  // the mouse meets what was drawn last
                await new Promise(requestAnimationFrame);
              const box = element.getBoundingClientRect();
              return [box.x + box.width / 2, box.y + box.height / 2];
            }})()"""
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left",
                      clickCount=1)  # fmt: skip

    def screenshot(self, whole: bool = False) -> bytes:
        """As PNG: the window, or the whole page."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole,
                          **({"clip": self._whole()} if whole else {}))  # fmt: skip
        return base64.b64decode(found["data"])

    def _whole(self) -> dict[str, float]:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}

    def _read(self) -> dict[str, Any]:
        parts = bytearray()
        while (byte := self._back.read(1)) != b"\0":
            if not byte:
                raise BrowserError("the browser ended")
            parts += byte
        found: dict[str, Any] = json.loads(parts)
        return found

    def _take(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.consoleAPICalled":
                self.said.append(str(params["args"]))
            case "Runtime.exceptionThrown":
                self.said.append(str(params["exceptionDetails"]))
            case "Log.entryAdded":
                self.said.append(str(params["entry"]["text"]))
            case "Network.requestWillBeSent":
                self.asked.append(params["request"]["url"])


@contextmanager
def browser() -> Iterator[Browser]:
    """Ends the browser, and removes what it kept."""
    found = program()
    assert found is not None
    to_read, to_write = os.pipe()
    back_read, back_write = os.pipe()
    with TemporaryDirectory(prefix="mlc-browser-", ignore_cleanup_errors=True) as profile:
        command = [
            found, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
            "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
            "--hide-scrollbars", f"--user-data-dir={profile}", "about:blank",
        ]  # fmt: skip

        def pipes() -> None:  # the browser reads 3 and writes 4
            os.dup2(to_read, 13)
            os.dup2(back_write, 14)
            os.dup2(13, 3)
            os.dup2(14, 4)

        child = subprocess.Popen(
            command, close_fds=False, preexec_fn=pipes, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(to_read)
        os.close(back_write)
        try:
            yield Browser(to_write, back_read)
        finally:
            with suppress(OSError):
                os.close(to_write)
            child.terminate()
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            with suppress(OSError):
                os.close(back_read)
