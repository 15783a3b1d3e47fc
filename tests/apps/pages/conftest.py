"""A headless Chromium that says what is seen on a page, what it complained of and asked for."""

import base64
import contextlib
import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--use-gl=angle",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    # Offline: no name can be resolved.
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-port=0",
)
PATIENCE = 90.0


@dataclass
class Seen:
    """A page as it was seen: pixels (height, width, 3) in 0..1, errors, and addresses asked for."""

    image: np.ndarray
    errors: list[str]
    requests: list[str]

    def share(self, color: tuple[float, float, float], tolerance: float) -> float:
        """Share of the pixels whose colour is near `color` (0..255) in every channel."""
        near = np.abs(255 * self.image - np.array(color)) <= tolerance
        return float(near.all(axis=-1).mean())


class Refused(Exception):
    """The browser could not do what it was asked to."""


class Tab:
    """One page, driven through the browser's debugging protocol over a loopback socket.

    Screenshots by command line need `--virtual-time-budget` to wait for an animation, and that can
    hang for good when frames are drawn in software; here time is real and the wait has an end.
    """

    def __init__(self, socket) -> None:
        self.socket = socket
        self.events: list[dict] = []
        self.numbers = itertools.count(1)

    def ask(self, method: str, **parameters) -> dict:
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = json.loads(self.socket.recv(timeout=max(deadline - time.monotonic(), 0.01)))
            if answer.get("id") == number:
                if "error" in answer:
                    raise Refused(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def value(self, expression: str):
        """Value of a JavaScript expression."""
        return self.ask("Runtime.evaluate", expression=expression, returnByValue=True)[
            "result"
        ].get("value")

    def wait(self, condition: str) -> None:
        """Waits until a JavaScript expression is true."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            # While a page is being replaced there is nothing that could answer.
            with contextlib.suppress(Refused):
                if self.value(condition) is True:
                    return
            time.sleep(0.1)
        pytest.fail(f"waited {PATIENCE:.0f} s in vain for: {condition}")

    def look(self) -> Seen:
        from matplotlib.image import imread

        shot = base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"])
        return Seen(imread(io.BytesIO(shot))[..., :3], self.errors(), self.requests())

    def errors(self) -> list[str]:
        found = []
        for event in self.events:
            parameters = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(parameters["exceptionDetails"]))
            elif event["method"] == "Runtime.consoleAPICalled":
                if parameters["type"] in ("error", "assert"):
                    found.append(str(parameters["args"]))
            elif event["method"] == "Log.entryAdded" and parameters["entry"]["level"] == "error":
                found.append(str(parameters["entry"]))
        return found

    def requests(self) -> list[str]:
        """Addresses asked for beyond the file itself and data inside it."""
        asked = [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]
        return [url[:200] for url in asked if not url.startswith(("data:", "blob:", "file:"))]


def _stop(browser: subprocess.Popen) -> None:
    """Ends the browser that was started here, and its children, which are in its own group."""
    browser.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        browser.wait(10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(browser.pid, signal.SIGKILL)
    browser.wait(10)


@pytest.fixture
def open_page(tmp_path) -> Callable[..., Tab]:
    """Opens a file: `open_page(path, size=(1200, 800), dark=False)`. Skips without a Chromium."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(
            f"needs a Chromium to look at the page: none of {', '.join(NAMES)} is installed"
        )
    client = pytest.importorskip("websockets.sync.client")
    profile = tmp_path / "profile"
    command = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    browser = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    sockets = []

    def open_page(path: Path, size: tuple[int, int] = (1200, 800), dark: bool = False) -> Tab:
        socket = client.connect(_address(browser, profile), max_size=None, open_timeout=PATIENCE)
        sockets.append(socket)
        tab = Tab(socket)
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.ask(f"{domain}.enable")
        width, height = size
        tab.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        tab.ask("Emulation.setEmulatedMedia", features=[scheme])
        tab.ask("Page.navigate", url=path.resolve().as_uri())
        tab.wait("location.protocol === 'file:' && document.readyState === 'complete'")
        return tab

    try:
        yield open_page
    finally:
        for socket in sockets:
            socket.close()
        _stop(browser)


def _address(browser: subprocess.Popen, profile: Path) -> str:
    """Address of the first page of the browser, as soon as it is listening."""
    import urllib.request

    deadline = time.monotonic() + PATIENCE
    note = profile / "DevToolsActivePort"
    while time.monotonic() < deadline:
        if browser.poll() is not None:
            pytest.skip(f"the browser does not start here (exit status {browser.returncode})")
        if note.exists() and (lines := note.read_text().splitlines()):
            with urllib.request.urlopen(f"http://127.0.0.1:{lines[0]}/json/list") as answer:
                pages = [tab for tab in json.load(answer) if tab["type"] == "page"]
            if pages:
                return pages[0]["webSocketDebuggerUrl"]
        time.sleep(0.1)
    pytest.fail(f"the browser was not ready after {PATIENCE:.0f} s")
