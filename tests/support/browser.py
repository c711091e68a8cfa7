"""A browser without a screen, and what tests do with its page."""

import os
import time
from pathlib import Path

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException

WIDTH, HEIGHT = 1200, 1300
SWITCHES = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync", "--lang=en-US",
            f"--window-size={WIDTH},{HEIGHT}"]  # fmt: skip


def start_driver(browser, driver, folder):
    """The driver of a new browser; both are paths of programs, which leave files in the folder."""
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for switch in SWITCHES:
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.chrome.service.Service(driver, env={**os.environ, "TMPDIR": str(folder)})
    return webdriver.Chrome(options=options, service=service)


class Browser:
    def __init__(self, driver):
        self.driver = driver

    def open(self, server, path="/ui/"):
        self.driver.get("about:blank")
        self.driver.get(f"http://{server.http_address}{path}")

    def find(self, selector):
        return self.driver.find_elements("css selector", selector)

    def one(self, selector):
        return self.wait(lambda: self.find(selector), f"nothing is {selector}")[0]

    def text(self, selector="body"):
        return "\n".join(element.text for element in self.find(selector))

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition, what, seconds=30):
        """Elements may be drawn anew while they are looked at: then they are looked at again."""
        end = time.monotonic() + seconds
        while True:
            try:
                if found := condition():
                    return found
            except StaleElementReferenceException:
                pass
            assert time.monotonic() < end, f"{what}:\n{self.text()}"
            time.sleep(0.05)

    def prefer(self, scheme, width=WIDTH):
        """Shows pages in the colours of a scheme, `light` or `dark`, and as wide as that."""
        features = [{"name": "prefers-color-scheme", "value": scheme}] if scheme else []
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.set_window_size(width, HEIGHT)

    def violations(self, axe):
        """What axe-core, whose text is given, finds wrong with the page as it is: the rule and the elements of each."""
        self.run(axe)
        script = """const done = arguments[0];
            axe.run(document, { resultTypes: ["violations"] }).then((found) => done(found), (error) => done({ error: String(error) }))"""
        found = self.driver.execute_async_script(script)
        assert "error" not in found, found
        # A page of which nothing was looked at has no violations either.
        assert found["passes"], "no rule of axe-core applies"
        return [(rule["id"], rule["help"], [(node["target"], node["failureSummary"]) for node in rule["nodes"]])
                for rule in found["violations"]]  # fmt: skip

    def wait_text(self, text, selector="body"):
        self.wait(lambda: text in self.text(selector), f"'{text}' is not there")

    def row(self, name):
        """The cells of a model in the table."""
        script = """return [...document.querySelectorAll("tbody tr")].map((row) => [...row.cells].map((cell) => cell.innerText))"""
        return self.wait(lambda: [row for row in self.run(script) if row[0] == name], f"no row of {name}")[0]

    def picture(self, name):
        """Keeps a picture for the documentation, where somebody wants it."""
        if folder := os.environ.get("HALIMEDE_SCREENSHOTS"):
            self.driver.save_screenshot(str(Path(folder) / f"{name}.png"))


def fill(browser, selector, text):
    browser.run("arguments[0].value = arguments[1]", browser.one(selector), text)


def answer_of(browser):
    """What the answer to the form's request consists of, or what is wrong."""
    browser.one("#content form button.main").click()
    # Until then the answer before stands there.
    browser.wait(lambda: browser.find("#content form button.main:enabled"), "no answer")
    selector = "#content form [aria-live] pre, #content form [aria-live] .error"
    return [element.text for element in browser.wait(lambda: browser.find(selector), "no answer")]
