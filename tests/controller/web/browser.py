"""A real browser without a window, and what it has asked for and complained of."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions")


def open_browser() -> Any:
    """Skips the test where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver")
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for option in OPTIONS:
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))


def complaints(browser: Any) -> list[str]:
    """Lines of the console: errors, warnings, violations of the policy."""
    return [entry["message"] for entry in browser.get_log("browser")]


def asked(browser: Any) -> set[str]:
    """Every address that the page has asked for since the last time."""
    found = set()
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            found.add(message["params"]["request"]["url"])
    return {url for url in found if not url.startswith(("data:", "chrome:"))}
