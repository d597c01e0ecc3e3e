"""A headless Chromium that tests drive through its DevTools protocol, over a pair of pipes: no driver, no port."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HANG_S = 300.0
"""No machine is that slow."""
COMMAND_FD, ANSWER_FD = 3, 4
"""Where `--remote-debugging-pipe` reads and writes."""


def installed() -> str | None:
    """The program, None where this machine has none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """One tab: what it logs is kept."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def open(self, path: Path, width: int, height: int = 900) -> None:
        """Show a file in a window of that size, and wait until it is loaded."""
        self.resize(width, height)
        self.call("Emulation.setEmulatedMedia", media="")
        self._browser.events.clear()
        self.call("Page.navigate", url=path.absolute().as_uri())
        self._browser.until(lambda: any(name == "Page.loadEventFired" for name, _ in self._browser.events))

    def resize(self, width: int, height: int = 900) -> None:
        """As a phone has it where it is narrow: the page's own viewport counts, and scroll bars take no room."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 700,
        )

    def run(self, code: str) -> Any:
        """The value of an expression of JavaScript, or of what it promises."""
        told = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def press(self, key: str, code: int, text: str = "", modifiers: int = 0) -> None:
        """Press a key and let it go."""
        plain = {"key": key, "code": key if key != " " else "Space", "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, modifiers=modifiers, **plain)
        self.call("Input.dispatchKeyEvent", type="keyUp", modifiers=modifiers, **plain)

    def complaints(self) -> list[str]:
        """What it logged as an error or a warning, and what it threw."""
        found = []
        for name, told in self._browser.events:
            if name == "Runtime.exceptionThrown":
                found.append(str(told["exceptionDetails"]))
            elif name == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
                found.append(str([each.get("value", each.get("description")) for each in told["args"]]))
            elif name == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
                found.append(told["entry"]["text"])
        return found

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write what is seen as PNG; `whole` is the page to its end."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def printed(self) -> bytes:
        """The page as it is printed on A4, a PDF."""
        told = self.call("Page.printToPDF", printBackground=True, paperWidth=8.27, paperHeight=11.69)
        return base64.b64decode(told["data"])


class Browser:
    """A browser that runs; `events` are those of all of its tabs, as they came."""

    def __init__(self, process: subprocess.Popen[bytes], to: int, back: int) -> None:
        self._process, self._to, self._back = process, to, back
        self._number, self._rest = 0, b""
        self._answers: dict[int, dict[str, Any]] = {}
        self.events: list[tuple[str, dict[str, Any]]] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        asked = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        text = json.dumps(asked).encode() + b"\0"
        while text:
            text = text[os.write(self._to, text) :]
        self.until(lambda: number in self._answers)
        told = self._answers.pop(number)
        assert "error" not in told, (method, told["error"])
        return told["result"]

    def until(self, condition: Any) -> None:
        limit = time.monotonic() + HANG_S
        while not condition():
            left = limit - time.monotonic()
            assert left > 0, "the browser does not answer"
            if select.select([self._back], [], [], left)[0]:
                self._take(os.read(self._back, 1 << 20))

    def _take(self, data: bytes) -> None:
        assert data, f"the browser has ended with {self._process.poll()}"
        *whole, self._rest = (self._rest + data).split(b"\0")
        for each in map(json.loads, whole):
            if "id" in each:
                self._answers[each["id"]] = each
            else:
                self.events.append((each["method"], each["params"]))


def _pipes() -> tuple[int, int, int, int]:
    """Two pipes, numbered above those that the program wants, so that neither is moved over the other."""
    low = (*os.pipe(), *os.pipe())
    high = tuple(fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 10) for each in low)
    for each in low:
        os.close(each)
    return high[0], high[1], high[2], high[3]


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser with a profile of its own; nothing of it is left."""
    program = installed()
    assert program is not None
    to_read, to, back, back_write = _pipes()
    with tempfile.TemporaryDirectory(prefix="chromium_", ignore_cleanup_errors=True) as folder:
        argv = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        argv += ["--no-first-run", "--disable-extensions", "--disable-background-networking", "--hide-scrollbars"]
        argv += [f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank"]
        # The program wants its two pipes as descriptors 3 and 4; a shell moves them there.
        moved = f'exec "$@" {COMMAND_FD}<&{to_read} {ANSWER_FD}>&{back_write}'
        process = subprocess.Popen(
            ["bash", "-c", moved, "bash", *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(to_read, back_write),
            env={**os.environ, "HOME": folder},
            start_new_session=True,
        )
        os.close(to_read)
        os.close(back_write)
        made = Browser(process, to, back)
        try:
            yield made
        finally:
            os.close(to)  # which it takes as its end
            os.close(back)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
