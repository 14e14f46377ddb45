"""A headless Chromium, driven by the WebDriver protocol: what a page of Airflow shows, and a picture of it."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.airflow.scheduled.postgres import ends_with_parent
from tests.helpers.paths import ROOT

# Where `tools/ensure_chromium.sh` puts it.
FOLDER = Path(os.environ.get("TXLOG_CHROMIUM", ROOT / ".venv" / "chromium"))
CHROMEDRIVER = FOLDER / "usr/bin/chromedriver"
GIVE_UP_S = 120
OPTIONS = [
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    # No page asks for anything beyond this machine.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]


class Browser:
    """`start`, use, `stop`. Its folder holds all that it writes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._driver: subprocess.Popen[bytes] | None = None
        self._session = ""

    def start(self) -> None:
        self._folder.mkdir()
        libraries = sorted({str(path.parent) for path in (FOLDER / "usr" / "lib").rglob("*.so*")})
        self._driver = subprocess.Popen(
            [CHROMEDRIVER, f"--port={self._port}"],
            env={"HOME": str(self._folder), "TMPDIR": str(self._folder), "LD_LIBRARY_PATH": ":".join(libraries)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=ends_with_parent,
        )
        binary = str(FOLDER / "usr/lib/chromium/chromium-headless-shell")

        wanted = {"alwaysMatch": {"goog:chromeOptions": {"binary": binary, "args": OPTIONS}}}
        self._until(self._is_ready, "the driver is up")
        self._session = self._send("POST", "/session", {"capabilities": wanted})["sessionId"]

    def _is_ready(self) -> bool:
        try:
            return bool(self._send("GET", "/status")["ready"])
        except OSError:
            return False

    def stop(self) -> None:
        assert self._driver is not None
        try:
            if self._session:
                self._send("DELETE", f"/session/{self._session}")
        finally:
            self._driver.terminate()
            self._driver.wait(20)

    def _send(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=GIVE_UP_S) as answer:
                return json.loads(answer.read())["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.read().decode(errors='replace')[:2000]}") from None

    def _until(self, reached: Any, what: str) -> Any:
        deadline = time.monotonic() + GIVE_UP_S
        while not (found := reached()):
            assert time.monotonic() < deadline, f"not within {GIVE_UP_S} s: {what}"
            time.sleep(0.1)
        return found

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns in the page; `arguments[0]` is the first argument."""
        return self._send("POST", f"/session/{self._session}/execute/sync", {"script": script, "args": arguments})

    def open(self, address: str, shows: str) -> None:
        """The page at the address, once its text has `shows`."""
        self._send("POST", f"/session/{self._session}/url", {"url": address})
        self.shows(shows)

    def shows(self, text: str) -> None:
        """Wait until the page's text has this, spaces aside: of code, each word is an element of its own."""
        try:
            self._until(lambda: "".join(text.split()) in "".join(self.text().split()), f"{text!r} on the page")
        except AssertionError as late:
            raise AssertionError(f"{late}; it shows {self.text()!r}") from None

    def text(self) -> str:
        return str(self.run("return document.body.innerText"))

    def source(self) -> str:
        """The whole of the page as it is now, attributes and values of fields included."""
        values = "[...document.querySelectorAll('input,textarea')].map(field => field.value).join('\\n')"
        return str(self.run(f"return document.documentElement.outerHTML + '\\n' + {values}"))

    def click(self, xpath: str) -> None:
        """Click the first element that the XPath finds, once it is there."""
        self._send("POST", f"{self._element(xpath)}/click", {})

    def type(self, xpath: str, text: str) -> None:
        """Type into the first element that the XPath finds, once it is there."""
        self._send("POST", f"{self._element(xpath)}/value", {"text": text})

    def _element(self, xpath: str) -> str:
        first = "return document.evaluate(arguments[0], document, null, 9, null).singleNodeValue"
        (reference,) = self._until(lambda: self.run(first, xpath), xpath).values()
        return f"/session/{self._session}/element/{reference}"

    def picture(self, path: Path, width: int = 1280, height: int = 900) -> None:
        """A PNG of a window of this size."""
        self._send("POST", f"/session/{self._session}/window/rect", {"width": width, "height": height})
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self._send("GET", f"/session/{self._session}/screenshot")))
