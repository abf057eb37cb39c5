"""A browser for tests: as much of the W3C WebDriver protocol as they need, over http.client.

Chromium runs without a window, with a profile of its own that is thrown away, and loads nothing by itself.
Elements are found and looked at by scripts; clicks, keys and screens are the browser's own.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # The protocol's name for a reference to an element.
START_S = 20.0
WAIT_S = 10.0
KEYS = {"Escape": "\ue00c", "Tab": "\ue004", "Enter": "\ue007", "ArrowRight": "\ue014", "ArrowDown": "\ue015"}
OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]


def programs() -> tuple[str | None, str | None]:
    """Paths of the browser and of its driver, None for what is not installed."""
    return shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")


class Browser:
    """`with Browser() as browser: browser.open(path)`. All that it started has ended with the block."""

    def __init__(self) -> None:
        browser, driver = programs()
        assert browser, "chromium is not installed; mark the test needs_chromium"
        assert driver, "chromedriver is not installed; mark the test needs_chromium"
        self._home = tempfile.TemporaryDirectory(prefix="lockfast-browser-", ignore_cleanup_errors=True)
        self.home = self._home.name
        self._log = Path(self.home, "driver.log")
        # A session of its own: the browser's many processes are ended as one group, however the test ended.
        with self._log.open("wb") as log:
            self._driver = subprocess.Popen(
                [driver, "--port=0", "--log-level=SEVERE"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "HOME": self.home, "TMPDIR": self.home},
            )
        self._session = ""
        try:
            self._connection = http.client.HTTPConnection("127.0.0.1", self._port(), timeout=30)
            arguments = [*OPTIONS, f"--user-data-dir={self.home}/profile"]
            chrome = {"binary": browser, "args": arguments}
            wanted = {"capabilities": {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": chrome}}}
            self._session = f"/session/{self._ask('POST', '/session', wanted)['sessionId']}"
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser and its driver."""
        if self._session:
            try:
                self._ask("DELETE", self._session)
            except (OSError, AssertionError, http.client.HTTPException):
                pass  # It hangs or is gone; the signal below is enough.
            self._session = ""
            self._connection.close()
        try:
            os.killpg(self._driver.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._driver.wait()
        self._home.cleanup()

    def _port(self) -> int:
        """The port that the driver chose, from the line with which it says so."""
        for text in _until(START_S, lambda: self._log.read_text(errors="replace")):
            if "on port " in text:
                number = text.rpartition("on port ")[2].split(".")[0]
                if number.isdigit():
                    return int(number)
            assert self._driver.poll() is None, f"chromedriver ended: {text}"
        raise AssertionError("chromedriver did not start")

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        content = json.dumps(body or {}) if method == "POST" else None
        self._connection.request(method, path, content, {"Content-Type": "application/json"} if content else {})
        response = self._connection.getresponse()
        value = json.loads(response.read())["value"]
        assert response.status == 200, f"{method} {path}: {value}"
        return value

    def open(self, path: Path, fragment: str = "") -> None:
        """Load a file, afresh also when only the fragment differs from what is shown."""
        self._ask("POST", f"{self._session}/url", {"url": "about:blank"})
        self._ask("POST", f"{self._session}/url", {"url": path.as_uri() + (f"#{fragment}" if fragment else "")})

    def run(self, script: str, *values: Any) -> Any:
        """What the body of a function returns in the page; `arguments` are the values."""
        return self._ask("POST", f"{self._session}/execute/sync", {"script": script, "args": list(values)})

    def wait(self, condition: str, *values: Any) -> Any:
        """Until an expression is true in the page; its value."""
        for value in _until(WAIT_S, lambda: self.run(f"return ({condition})", *values)):
            if value:
                return value
        raise AssertionError(f"never true in the page: {condition}")

    def click(self, selector: str) -> None:
        """A click of the mouse on the middle of the first such element."""
        found = self._ask("POST", f"{self._session}/element", {"using": "css selector", "value": selector})[ELEMENT]
        self._ask("POST", f"{self._session}/element/{found}/click")

    def press(self, key: str) -> None:
        """One key, to whatever has the focus."""
        strokes = [{"type": kind, "value": KEYS[key]} for kind in ("keyDown", "keyUp")]
        keyboard = {"type": "key", "id": "keyboard", "actions": strokes}
        self._ask("POST", f"{self._session}/actions", {"actions": [keyboard]})

    def back(self) -> None:
        """The back button."""
        self._ask("POST", f"{self._session}/back")

    def screen(self, width: int, height: int) -> None:
        """A screen of this size in CSS pixels, also smaller than a window can be."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self._devtools("Emulation.setDeviceMetricsOverride", size)

    def prefer(self, scheme: str = "light", media: str = "screen") -> None:
        """What the reader prefers, light or dark, and whether the page is on screen or printed."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._devtools("Emulation.setEmulatedMedia", {"media": media, "features": features})

    def scripts(self, allowed: bool) -> None:
        """Whether scripts of pages run; `run` always does."""
        self._devtools("Emulation.setScriptExecutionDisabled", {"value": not allowed})

    def screenshot(self) -> str:
        """The visible page as a PNG, in base64."""
        return str(self._ask("GET", f"{self._session}/screenshot"))

    def _devtools(self, command: str, values: dict[str, Any]) -> None:
        self._ask("POST", f"{self._session}/goog/cdp/execute", {"cmd": command, "params": values})


def _until(limit_s: float, look: Any) -> Iterator[Any]:
    """Looks again and again until the limit; whoever iterates stops when it has seen enough."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        yield look()
        time.sleep(0.02)
