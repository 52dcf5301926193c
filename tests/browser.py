"""A real browser for tests: Debian's Chromium, headless, with a profile of its own and no word to anybody outside."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
HANG_S = 60.0


@contextmanager
def browser(profile: Path) -> Iterator[webdriver.Chrome]:
    """Skips the test where there is none: `make browser` installs it on Debian."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no chromium and chromedriver on this machine: install them, on Debian with `make browser`")
    options = Options()
    options.binary_location = chromium
    for option in (*OPTIONS, f"--user-data-dir={profile}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    try:
        chrome.set_page_load_timeout(HANG_S)
        yield chrome
    finally:
        chrome.quit()


def log(chrome: webdriver.Chrome, name: str) -> list[dict[str, Any]]:
    """What was written to it since the last look: ``browser`` is the console, ``performance`` has the requests."""
    return list(chrome.get_log(name))


def look(chrome: webdriver.Chrome, width: int, *, dark: bool = False, paper: bool = False) -> None:
    """On a screen of this width."""
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print" if paper else "", "features": [scheme]})


def complaints(chrome: webdriver.Chrome) -> list[str]:
    """Lines of the console since the last time: errors, and what a page was not allowed to do."""
    return [str(entry["message"]) for entry in log(chrome, "browser")]


def asked(chrome: webdriver.Chrome) -> set[str]:
    """Every address that the page has asked for since the last time."""
    messages = [json.loads(entry["message"])["message"] for entry in log(chrome, "performance")]
    sent = [message["params"] for message in messages if message["method"] == "Network.requestWillBeSent"]
    return {url for params in sent if not (url := params["request"]["url"]).startswith(("data:", "chrome:"))}
