"""Chromium on the playground: a browser for the session, and the page as a person uses it."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait

from tests.checkpoints import write
from tests.node import AXE, folder_with
from tests.servers import ROOT, Program, start_worker

SHOTS = ROOT / ".cache" / "playground"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDE, PHONE = (1360, 900), (390, 844)
# The machine may be busy.
PATIENCE_S = 30
KEY = "the key of this test"


class Page:
    """The playground in a browser. Controls are named by their ids, buttons by their labels."""

    def __init__(self, driver: webdriver.Chrome, downloads: Path) -> None:
        self.driver = driver
        self.downloads = downloads

    def open(self, url: str, fragment: str = "") -> None:
        """The page, loaded anew, with its models listed."""
        self.driver.get("about:blank")
        self.driver.get(f"{url}/playground{fragment}")
        self.until("return document.querySelector('#examples button') !== null")

    def until(self, script: str, *arguments: Any) -> Any:
        """What a script returns, once that is true."""
        return WebDriverWait(self.driver, PATIENCE_S, 0.05).until(
            lambda driver: driver.execute_script(script, *arguments), script
        )

    def find(self, id: str) -> WebElement:
        return self.driver.find_element(By.ID, id)

    def text(self, id: str) -> str:
        return self.find(id).text

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def click_on(self, control: WebElement) -> None:
        """As a person does: scrolled to first, clear of the bar at the bottom."""
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", control)
        control.click()

    def click_id(self, id: str) -> None:
        self.click_on(self.find(id))

    def click(self, label: str) -> None:
        """The button with this label."""
        self.click_on(self.driver.find_element(By.XPATH, f"//button[normalize-space()='{label}']"))

    def fill(self, id: str, text: str) -> None:
        self.find(id).clear()
        self.find(id).send_keys(text)

    def choose(self, id: str, value: str) -> None:
        Select(self.find(id)).select_by_value(value)

    def put(self, request: dict[str, Any] | str) -> None:
        """A request, by its JSON."""
        text = request if isinstance(request, str) else json.dumps(request, ensure_ascii=False)
        script = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))"
        self.driver.execute_script(script, self.find("json"), text)

    def request(self) -> dict[str, Any]:
        return dict(json.loads(self.find("json").get_attribute("value") or ""))

    def press(self, *keys: str) -> None:
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def press_with(self, modifier: str, key: str) -> None:
        webdriver.ActionChains(self.driver).key_down(modifier).send_keys(key).key_up(modifier).perform()

    def focused(self) -> str:
        """The id of what has the focus."""
        return str(self.driver.execute_script("return document.activeElement.id"))

    def tab_to(self, id: str) -> None:
        """By the Tab key, to a control that can then be seen: the bar at the bottom does not cover it."""
        for _ in range(80):
            if self.focused() == id:
                assert self.driver.execute_script(
                    "const {left, width, bottom} = document.activeElement.getBoundingClientRect();"
                    "const seen = document.elementFromPoint(left + width / 2, bottom - 3);"
                    "return document.activeElement.contains(seen)"
                ), f"{id} is covered"
                return
            self.press(Keys.TAB)
        raise AssertionError(f"the Tab key does not come to {id}")

    def send(self) -> str:
        """What the page says of the answers, or of the refusals."""
        self.click_id("send")
        return self.settled()

    def settled(self) -> str:
        script = """
            if (document.querySelector('#send').textContent !== 'Send') return '';
            const refused = document.querySelector('#refused').innerText;
            const said = document.querySelector('#status').textContent;
            return refused || (said.startsWith('Answered') ? said : '')"""
        return str(self.until(script))

    def answers(self) -> dict[str, str]:
        """The text of each question's answer, by the question's id."""
        cards = self.all("#answers section:has(table)")
        return {card.find_element(By.TAG_NAME, "h3").text: card.text for card in cards}

    def complaints(self) -> list[str]:
        """What the browser logged since this was asked last, but for the refusals that a test asked for."""
        logged = [entry["message"] for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]
        return [line for line in logged if "the server responded with a status of 4" not in line]

    def look(self, size: tuple[int, int] = WIDE, scheme: str = "light") -> None:
        """The window's size, and the colours that the person prefers."""
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def shoot(self, name: str) -> None:
        """A screenshot of the whole page, kept for people to look at."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        script = "return [document.documentElement.clientWidth, document.documentElement.scrollHeight]"
        width, height = self.driver.execute_script(script)
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        asked = {"clip": clip, "captureBeyondViewport": True}
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", asked)
        (SHOTS / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))

    def unreadable(self) -> list[Any]:
        """What axe-core finds wrong with the page as it is now: labels, roles, contrast, order."""
        if not self.driver.execute_script("return 'axe' in window"):
            rules = folder_with(*AXE) / "node_modules" / AXE[0] / "axe.min.js"
            self.driver.execute_script(rules.read_text())
        return list(
            self.driver.execute_async_script("axe.run().then((found) => arguments[0](found.violations))")
        )


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("browser")
    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    options.add_experimental_option("prefs", {"download.default_directory": str(folder)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver"))) as driver:
        yield Page(driver, folder)


@pytest.fixture
def page(browser: Page) -> Iterator[Page]:
    """A browser whose log is empty at the end: no violation of the content-security policy, no fault of a script."""
    browser.look()
    browser.complaints()
    yield browser
    assert browser.complaints() == []


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A worker that asks for a key and has two models."""
    tiny = write(tmp_path_factory.mktemp("tiny"))
    with start_worker(LAYA_API_KEY=KEY, LAYA_MODELS=f"demo,tiny={tiny}") as program:
        yield program
