"""A headless Chromium and a server for it, for tests of the page."""

import contextlib
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """playwright's Browser: HYPIC_TEST_CHROMIUM, one on the PATH, or playwright's own; without any, skipped."""
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright, to test the page")
    with playwright.sync_playwright() as started:
        named = os.environ.get("HYPIC_TEST_CHROMIUM")  # one that is not there fails: who names it wants these tests
        found = named or next(filter(None, map(shutil.which, NAMES)), started.chromium.executable_path)
        if not named and not os.path.exists(found):
            pytest.skip("no Chromium: apt-get install chromium, playwright install chromium, or name one "
                        "in HYPIC_TEST_CHROMIUM")  # fmt: skip
        browser = started.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def served(app: Any) -> Iterator[str]:
    """The address of the application on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < until and thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.should_exit = True
        thread.join(10)
