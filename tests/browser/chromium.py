"""Chromium with one page, and what tests ask of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.support.wait import WebDriverWait

#: No traffic of its own, and nothing of an earlier start.
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)


def start(profile: Path) -> Browser:
    """Starts a browser.

    Args:
      profile: a folder of its own, in which it keeps its files.
    """
    options = webdriver.ChromeOptions()
    binary = shutil.which("chromium")
    assert binary, "there is no chromium; make test-page says how to get it"
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_script_timeout(60)
    return Browser(driver)


class Browser:
    """Chromium with one page, and what a test asks of it."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, page: Path | str, width: int = 1280, height: int = 900, **media: str) -> None:
        """Opens a page at a size, with features of media such as prefers_color_scheme="dark"."""
        self.resize(width, height)
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.get_log("browser")
        self.driver.get(page if isinstance(page, str) else page.absolute().as_uri())

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns; `stage` is the page's."""
        return self.driver.execute_script(f"const stage = deeprok.page.stage;\n{script}", *arguments)

    def wait(self, script: str, *arguments: Any, seconds: float = 20.0) -> Any:
        """Waits until a script returns something true."""
        return WebDriverWait(self.driver, seconds, 0.05).until(lambda _: self.run(script, *arguments))

    def texts(self, selector: str) -> list[str]:
        return self.run("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector)

    def press(self, keys: str) -> None:
        ActionChains(self.driver).send_keys(keys).perform()

    @property
    def complaints(self) -> list[str]:
        """What the console has said since the page was opened."""
        return [entry["message"] for entry in self.driver.get_log("browser")]
