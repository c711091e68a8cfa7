"""The page at /ui, in a browser without a screen where one is installed, and what it is made of."""

import os
import re
import shutil
import signal
import threading

import pytest
from support import models, python_models
from support.browser import answer_of, fill
from support.server import ROOT
from support.waiting import wait_until

pytestmark = pytest.mark.halimede_only("a page of ours")

FILES = ROOT / "crates" / "server" / "ui"
RESTRICTED = "--http-restricted-api=ui,statistics,metadata:page-key=open sesame"


def state(server, **headers):
    reply = server.http.request("GET", "/ui/state", headers=headers)
    assert reply.status == 200, reply.body
    return reply.json


def loaded(server, name):
    return next(model["loaded"] for model in state(server)["models"] if model["name"] == name)


def ask_digits(server, identifier="r", batch=1):
    data = {"name": "pixels", "shape": [batch, 8, 8], "datatype": "UINT8", "data": [7] * (64 * batch)}
    reply = server.http.infer("digits", {"id": identifier, "inputs": [data]})
    assert reply.status == 200, reply.body
    return reply.json


# --- without a browser ------------------------------------------------------------------------------------------


def test_the_page_and_its_files(examples):
    reply = examples.http.get("/ui")
    assert (reply.status, reply.headers["location"]) == (307, "ui/")
    for path in FILES.iterdir():
        reply = examples.http.get("/ui/" + ("" if path.name == "index.html" else path.name))
        assert reply.status == 200 and reply.body == path.read_bytes(), path
        kind = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}[path.suffix]
        assert reply.headers["content-type"] == f"{kind}; charset=utf-8"
        assert reply.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert reply.headers["x-content-type-options"] == "nosniff"
    for path in ["/ui/index.htm", "/ui/../Cargo.toml", "/ui//", "/uix", "/ui/state/"]:
        assert examples.http.get(path).status == 404, path
    assert examples.http.post("/ui/state", b"{}").status == 405


def test_the_page_is_whole_without_a_network():
    """No address of another host stands in a file, but the name of SVG."""
    for path in FILES.iterdir():
        addresses = re.findall(r"(?:https?:)?//[a-z][^\s\"'`]*", re.sub(r"(?m)^\s*//.*$", "", path.read_text()))
        assert set(addresses) <= {"http://www.w3.org/2000/svg"}, path


def test_what_the_state_tells(repository_for, serve):
    server = serve(ROOT / "examples" / "repository")
    for batch, identifier in [(1, "one"), (3, "three"), (3, "again")]:
        ask_digits(server, identifier, batch)
    # A request is in flight for a moment after its answer: until nothing of the model is used for it.
    wait_until(lambda: loaded(server, "digits")["in_flight"] == 0)
    found = loaded(server, "digits")
    assert (found["success"]["count"], found["inferences"], found["in_flight"]) == (3, 7, 0)
    assert found["batches"] == [[1, 1], [3, 2]]
    assert sum(count for _, count in found["latencies"]) == 3
    assert {request["id"] for request in found["slowest"]} == {"one", "three", "again"}
    for request in found["slowest"]:
        assert 0 < sum(ns for _, ns in request["parts"]) <= request["total"]
        # Each is in a bucket whose bound is not far beyond it.
        assert any(request["total"] < bound <= 1.13 * request["total"] for bound, _ in found["latencies"])
    assert [tensor["name"] for tensor in found["inputs"]] == ["pixels"]
    whole = state(server)
    assert whole["units"][0]["name"] == "cpu" and whole["units"][0]["threads"] >= 1
    assert whole["process"]["resident"] > 1 << 20 and whole["machine"]["total"] > 1 << 28
    assert not whole["server"]["is_explicit"]
    assert loaded(server, "digits_classifier")["operators"][0]["unit"] == "cpu"
    # A request that fails is counted by its reason, and is none of the slowest.
    server.http.infer("digits", {"inputs": []})
    assert len(loaded(server, "digits")["slowest"]) == 3


def test_a_page_can_be_off(serve):
    server = serve(ROOT / "examples" / "repository", "--allow-ui=false")
    for path in ["/ui", "/ui/", "/ui/app.js", "/ui/state"]:
        assert server.http.get(path).status == 404


@pytest.mark.parametrize("group", ["ui", "model-repository", "metadata", "statistics"])
def test_the_state_asks_for_the_header_of_each_of_its_parts(serve, group):
    server = serve(ROOT / "examples" / "repository", f"--http-restricted-api={group}:page-key=open sesame")
    reply = server.http.get("/ui/state")
    assert reply.status == 403 and "'page-key'" in reply.json["error"]
    assert state(server, **{"page-key": "open sesame"})["models"]
    # The page itself tells nothing of the server, and can ask for the header.
    assert server.http.get("/ui/").status == 200


# --- in a browser -----------------------------------------------------------------------------------------------


@pytest.fixture
def load():
    """Keeps a server busy until the test is over."""
    threads, is_over = [], threading.Event()

    def start(server, pause=0.002):
        def work():
            number = 0
            while not is_over.wait(pause):
                number += 1
                ask_digits(server, f"request {number}", 1 + number % 4)

        threads.append(threading.Thread(target=work))
        threads[-1].start()

    yield start
    is_over.set()
    for thread in threads:
        thread.join()


def test_models_and_what_they_do(serve, browser, load):
    server = serve(ROOT / "examples" / "repository")
    load(server)
    browser.open(server)
    browser.wait_text("Ready", "#status")
    browser.wait(lambda: browser.row("digits")[4] not in ("0 /s", "–"), "no throughput")
    name, version, shown, why, requests, p50, p99, *_ = browser.row("digits")
    assert (version, shown, why) == ("1", "READY", "")
    assert re.fullmatch(r"[\d.]+ k?/s", requests) and re.fullmatch(r"[\d.]+ [µm]s", p50) and re.fullmatch(r"[\d.]+ [µm]s", p99)
    # Nobody asks this one: no request has no percentile.
    assert browser.row("identity_fp32")[4:7] == ["0 /s", "–", "–"]
    assert "Control" not in browser.text("thead")
    browser.picture("models")
    for element in browser.find("main svg[role=img]"):
        assert element.get_attribute("aria-label")


def test_one_model(serve, browser, load):
    server = serve(ROOT / "examples" / "repository")
    load(server)
    browser.open(server)
    # With the keyboard alone.
    browser.wait(lambda: "digits_classifier" in browser.text("main"), "no models")
    browser.run("""[...document.querySelectorAll("main a")].find((a) => a.innerText === "digits_classifier").focus()""")
    browser.run("document.activeElement.dataset.mark = '1'")
    from selenium.webdriver.common.keys import Keys

    browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
    browser.wait_text("digits_classifier, version 1", "h2")
    browser.wait(lambda: len(browser.find("path.line[d*=L]")) >= 6, "no lines")
    labels = [element.get_attribute("aria-label") for element in browser.find("svg[role=img]")]
    assert any(re.match(r"Throughput, now: requests [\d.]+ k?/s, failures 0 /s", label) for label in labels), labels
    assert any(re.match(r"Latency, now: p50 [\d.]+ [µm]s", label) for label in labels), labels
    assert any(label.startswith("Executions by batch size: batch of 1") for label in labels), labels
    browser.wait(lambda: re.search(r"Placement on cpu[^\n]*: \w+, [\w ]+ \d+ %", "\n".join(
        element.get_attribute("aria-label") for element in browser.find("svg[role=img]"))), "no placement")
    browser.picture("model")
    browser.driver.back()
    browser.wait_text("Models", "h2")
    browser.open(server, "/ui/#/models/" + "%5B%22%22%2C%22digits%22%2C1%5D")
    browser.wait_text("digits, version 1", "h2")
    browser.wait(lambda: len(browser.find("table svg rect")) >= 5, "no waterfall")
    assert re.search(r"request \d+ ", browser.text("tbody"))


def press(browser, name, label):
    script = """[...document.querySelectorAll("tbody tr")].find((row) => row.cells[0].innerText === arguments[0])
        .querySelector("button").click()"""
    assert browser.row(name)[-1] == label
    browser.run(script, name)


def test_models_are_loaded_and_unloaded(serve, browser, example_copy):
    broken = example_copy / "broken" / "1"
    broken.mkdir(parents=True)
    (broken / "model.onnx").write_bytes(b"no model")
    server = serve(example_copy, "--model-control-mode=explicit", "--load-model=add_sub")
    browser.open(server)
    assert browser.row("add_sub")[2] == "READY"

    press(browser, "add_sub", "Unload")
    browser.wait(lambda: browser.row("add_sub")[2] == "UNAVAILABLE", "not unloaded")
    assert browser.row("add_sub")[3] == "unloaded"
    press(browser, "add_sub", "Load")
    browser.wait(lambda: browser.row("add_sub")[2] == "READY", "not loaded")
    assert server.http.get("/v2/models/add_sub/ready").status == 200
    press(browser, "broken", "Load")
    browser.wait_text("model.onnx", "#done")
    browser.wait(lambda: "model.onnx" in browser.row("broken")[3], "no reason")


@pytest.mark.parametrize("name", ["with space", "ünï", "a&b=c", "per%cent", "hash#1", "q?x", 'quo"te', "<b>"])
def test_any_name_is_loaded_unloaded_and_asked(repository, serve, browser, name):
    server = serve(repository.add(name, models.identity(1, ["n", 2])), "--model-control-mode=explicit", "--load-model=*")
    browser.open(server)
    for label, done, shown in [("Unload", "unloaded", "UNAVAILABLE"), ("Load", "loaded", "READY")]:
        press(browser, name, label)
        browser.wait_text(f"{name}: {done}", "#done")
        assert browser.row(name)[2] == shown
    browser.one("table a").click()
    browser.one("#content form button.main")
    fill(browser, "fieldset textarea", "1 2")
    assert answer_of(browser) == ["1, 2"]


def test_names_in_paths_mean_what_they_are_before_what_they_encode(repository, serve):
    """A client that encodes no name reaches a model whose name looks encoded, as with Triton."""
    for name in ["a b", "a%20b"]:
        repository.add(name, models.identity(1, ["n", 2]))
    server = serve(repository, "--model-control-mode=explicit", "--load-model=*")
    states = lambda: {m["name"]: m["state"] for m in server.http.post("/v2/repository/index", b"{}").json}  # noqa: E731
    assert server.http.post("/v2/repository/models/a%20b/unload", b"{}").status == 200
    assert states() == {"a b": "READY", "a%20b": "UNAVAILABLE"}
    assert server.http.post("/v2/repository/models/a%2520b/load", b"{}").status == 200
    assert server.http.post("/v2/repository/models/no%20such/unload", b"{}").status == 200
    assert states() == {"a b": "READY", "a%20b": "READY"}
    # Of other calls, too.
    for path, name in [("a%20b", "a%20b"), ("a%2520b", "a%20b")]:
        assert server.http.get(f"/v2/models/{path}").json["name"] == name
    assert server.http.post("/v2/repository/models/a%2520b/unload", b"{}").status == 200
    assert "'a%20b' has no available versions" in server.http.get("/v2/models/a%20b").error
    assert "'no%20such' is not found" in server.http.get("/v2/models/no%20such").error


def test_what_has_become_of_a_model_is_looked_up(serve, browser, example_copy):
    server = serve(example_copy, "--model-control-mode=explicit", "--load-model=digits")
    browser.open(server)
    browser.row("digits")
    # A server that says yes and does nothing, as one does that does not know the name.
    browser.run("""const real = fetch; window.fetch = (path, options) =>
        (String(path).includes("/v2/repository/") ? Promise.resolve(new Response("")) : real(path, options))""")
    press(browser, "digits", "Unload")
    browser.wait_text("digits: the server says that it is unloaded, but it is READY", "#done")
    press(browser, "add_sub", "Load")
    browser.wait_text("add_sub: the server says that it is loaded, but it is not loaded", "#done")


def looks(browser):
    """Waits until the page has looked at the server twice more, and shows what it has seen."""
    number = "return performance.getEntriesByName(new URL('state', location)).length"
    before = browser.run(number)
    browser.wait(lambda: browser.run(number) >= before + 2, "no look")


def test_what_somebody_does_outlasts_a_look(serve, browser, load, example_copy):
    from selenium.webdriver.common.action_chains import ActionChains

    server = serve(example_copy, "--model-control-mode=explicit", "--load-model=*")
    load(server)
    browser.prefer(None, 500)
    browser.open(server)
    browser.wait(lambda: browser.row("digits")[4] not in ("0 /s", "–"), "no throughput")
    browser.run("document.querySelector('.scroll').scrollLeft = 120")
    browser.run("getSelection().selectAllChildren(document.querySelector('th[scope=row]'))")
    selected = browser.run("return getSelection().toString()")
    looks(browser)
    assert selected and browser.run("return getSelection().toString()") == selected
    assert browser.run("return document.querySelector('.scroll').scrollLeft") == 120
    # A press that takes longer than a look.
    browser.prefer(None)
    row = next(row for row in browser.find("tbody tr") if row.text.startswith("encoder"))
    button = row.find_element("css selector", "button")
    ActionChains(browser.driver).click_and_hold(button).perform()
    looks(browser)
    ActionChains(browser.driver).release().perform()
    browser.wait_text("encoder: unloaded", "#done")
    assert browser.row("encoder")[2] == "UNAVAILABLE" and button.text == "Load"
    # Rows that come and go are those of their models.
    shutil.copytree(example_copy / "digits", example_copy / "another")
    shutil.rmtree(example_copy / "encoder")
    server.http.post("/v2/repository/models/another/load", b"{}")
    assert browser.row("another")[2] == "READY" and browser.row("digits")[2] == "READY"


def test_a_model_that_is_being_loaded_is_not_loaded_again(repository, serve, browser):
    code = "\nclass TritonPythonModel:\n    def initialize(self, args):\n        time.sleep(8)\n"
    config = python_models.config({"IN": "FP32"}, {"OUT": "FP32"})
    server = serve(python_models.add(repository, "slow", code, config), "--model-control-mode=explicit", python_models.INTERPRETER)
    loading = threading.Thread(target=server.http.post, args=("/v2/repository/models/slow/load", b"{}"))
    loading.start()
    browser.open(server)
    browser.wait(lambda: browser.row("slow")[2] == "LOADING", "not loading")
    assert not browser.one("tbody button").is_enabled()
    loading.join()
    browser.wait(lambda: browser.row("slow")[2] == "READY" and browser.one("tbody button").is_enabled(), "not loaded")


def test_a_long_name_leaves_room(repository, serve, browser):
    name = "x" * 200
    server = serve(repository.add(name, models.identity(1, ["n", 2])), "--model-control-mode=explicit", "--load-model=*")
    browser.open(server)
    browser.row(name)
    for selector in ["document.documentElement", "document.querySelector('.scroll')"]:
        assert browser.run(f"return {selector}.scrollWidth <= {selector}.clientWidth"), selector
    browser.one("tbody a").click()
    browser.wait_text(name, "h2")
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("address", ["models/digits", "models/%", "models/[]", "models/null", "nowhere"])
def test_an_address_that_is_of_no_model_shows_all(examples, browser, address):
    browser.open(examples, f"/ui/#/{address}")
    assert browser.row("digits")[2] == "READY"
    assert browser.text("#status") == "Ready"


@pytest.mark.parametrize("width", [600, 1200])
def test_what_loads_a_model_is_in_sight(serve, browser, example_copy, width):
    """Beside long reasons and in narrow windows, too: nobody looks for a button beyond the edge."""
    broken = example_copy / "broken" / "1"
    broken.mkdir(parents=True)
    (broken / "model.onnx").write_bytes(b"no model")
    server = serve(example_copy, "--model-control-mode=explicit")
    server.http.post("/v2/repository/models/broken/load")
    browser.prefer(None, width)
    browser.open(server)
    browser.wait(lambda: "model.onnx" in browser.row("broken")[3], "no reason")
    script = """return [...document.querySelectorAll("tbody button")].map((button) => {
        scrollBy(0, button.getBoundingClientRect().top - innerHeight / 2);
        const { left, right, top, bottom } = button.getBoundingClientRect();
        return document.elementFromPoint((left + right) / 2, (top + bottom) / 2) === button && left >= 0 && right <= innerWidth;
    })"""
    seen = browser.run(script)
    assert len(seen) > 3 and all(seen), seen


def test_nothing_from_the_server_becomes_markup(serve, browser, example_copy):
    evil = '<img src=x onerror="document.title=1">'
    (example_copy / "<b>bold<b>").mkdir()
    server = serve(example_copy, "--exit-on-error=false", "--strict-readiness=false")
    ask_digits(server, evil)
    browser.open(server)
    browser.wait_text("<b>bold<b>", "main")
    browser.open(server, "/ui/#/models/" + "%5B%22%22%2C%22digits%22%2C1%5D")
    browser.wait_text(evil, "tbody")
    assert not browser.find("main img, main b") and browser.driver.title == "Halimede"


def test_the_page_asks_for_the_header_that_is_wanted(serve, browser):
    server = serve(ROOT / "examples" / "repository", RESTRICTED)
    browser.open(server)
    browser.wait_text("expecting header 'page-key'", "#status")
    assert browser.one("#access input[name=header]").get_attribute("value") == "page-key"
    fill(browser, "#access input[name=value]", "wrong")
    browser.one("#access button").click()
    browser.wait(lambda: browser.one("#access").is_displayed(), "a wrong value is taken")
    fill(browser, "#access input[name=value]", "open sesame")
    browser.one("#access button").click()
    assert browser.row("digits")[2] == "READY"
    assert not browser.one("#access").is_displayed()
    browser.run("sessionStorage.clear()")


def test_a_header_that_no_browser_can_send_is_not_kept(serve, browser):
    server = serve(ROOT / "examples" / "repository", RESTRICTED)
    browser.open(server)
    browser.wait_text("expecting header 'page-key'", "#status")
    fill(browser, "#access input[name=value]", "€")
    browser.one("#access button").click()
    browser.wait_text("cannot send this", "#access-problem")
    fill(browser, "#access input[name=value]", "open sesame")
    browser.one("#access button").click()
    assert browser.row("digits")[2] == "READY"
    browser.run("sessionStorage.clear()")


def test_skipping_to_the_content_stays_at_the_model(serve, browser):
    server = serve(ROOT / "examples" / "repository")
    address = "/ui/#/models/" + "%5B%22%22%2C%22identity_int32%22%2C1%5D"
    browser.open(server, address)
    browser.wait(lambda: browser.find("main form"), "the form is shown")
    browser.run("document.querySelector('.skip').click()")
    looks(browser)
    assert browser.find("main form") and browser.run("return document.activeElement.id") == "content"


def test_the_page_asks_for_the_header_of_what_it_sends(serve, browser):
    server = serve(ROOT / "examples" / "repository", "--http-restricted-api=inference:infer-key=sesame")
    browser.open(server, "/ui/#/models/" + "%5B%22%22%2C%22identity_int32%22%2C1%5D")
    assert "infer-key" in answer_of(browser)[0]
    # The looks at the state go well, and leave it open.
    looks(browser)
    assert browser.one("#access").is_displayed()
    fill(browser, "#access input[name=value]", "sesame")
    browser.one("#access button").click()
    assert not browser.one("#access").is_displayed()
    # What was refused is sent again.
    browser.wait_text("0", "#content form [aria-live] pre")
    assert not browser.find("#content form .error") and answer_of(browser) == ["0"]
    browser.run("sessionStorage.clear()")


def test_dark_and_light(examples, browser):
    colours = {}
    for scheme in ["light", "dark"]:
        browser.prefer(scheme)
        browser.open(examples)
        browser.row("digits")
        back, text = (browser.run(f"return getComputedStyle(document.body).{name}") for name in ["backgroundColor", "color"])
        colours[scheme] = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (back, text)]
        browser.picture(f"models-{scheme}")
    assert colours["light"][0] > 700 > 100 > colours["light"][1] - 20
    assert colours["dark"][0] < 120 and colours["dark"][1] > 600


def test_every_field_has_a_name(examples, browser):
    """What a screen reader says of a page: names of fields and buttons, headers of tables, one heading of each level on top."""
    for path in ["/ui/", "/ui/#/models/" + "%5B%22%22%2C%22digits%22%2C1%5D"]:
        browser.open(examples, path)
        browser.wait(lambda: browser.find("main table, main form"), "nothing")
        nameless = """return [...document.querySelectorAll("input, textarea, select, button")].filter((field) =>
            !(field.labels?.length || field.innerText.trim() || field.getAttribute("aria-label"))).map((field) => field.outerHTML)"""
        assert browser.run(nameless) == []
        assert browser.run("return document.querySelectorAll('h1').length") == 1
        assert browser.run("return document.documentElement.lang") == "en"
        assert browser.run("return [...document.querySelectorAll('table')].every((t) => t.caption && t.querySelector('th[scope=col]'))")


@pytest.fixture(scope="module")
def axe():
    """The text of axe-core, a package of npm."""
    path = ROOT / "target" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
    if not path.exists():
        assert not os.environ.get("HALIMEDE_EXPECT_CHROMIUM"), "axe-core is to be installed here: scripts/install-npm-package.sh axe"
        pytest.skip("axe-core is not installed: scripts/install-npm-package.sh axe")
    return path.read_text()


@pytest.mark.parametrize("scheme, width", [("light", 1200), ("dark", 500)])
def test_axe_finds_nothing(serve, browser, load, axe, example_copy, scheme, width):
    (example_copy / "broken" / "1").mkdir(parents=True)
    (example_copy / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    server = serve(example_copy, "--model-control-mode=explicit", "--load-model=*", "--exit-on-error=false",
                   "--strict-readiness=false")  # fmt: skip
    load(server)
    browser.prefer(scheme, width)

    def nothing_wrong(view):
        assert browser.violations(axe) == [], view

    browser.open(server)
    browser.wait(lambda: browser.row("digits")[4] not in ("0 /s", "–"), "no throughput")
    assert browser.row("broken")[2] == "UNAVAILABLE"
    nothing_wrong("all models, one of which failed to load")
    browser.one("#pause").click()
    nothing_wrong("a page that is paused")

    browser.open(server, "/ui/#/models/" + "%5B%22%22%2C%22digits%22%2C1%5D")
    browser.wait(lambda: len(browser.find("path.line[d*=L]")) >= 6 and browser.find("table svg rect"), "nothing is drawn")
    answer_of(browser)
    nothing_wrong("a model, and the answer to a request")
    fill(browser, "fieldset input", "many")
    answer_of(browser)
    nothing_wrong("a model, and a request that is refused")

    browser.open(server, "/ui/#/models/" + "%5B%22%22%2C%22nowhere%22%2C1%5D")
    browser.wait_text("not in the repository")
    nothing_wrong("a model that is not there")

    browser.open(serve(example_copy, RESTRICTED, "--exit-on-error=false", "--strict-readiness=false"))
    browser.wait(lambda: browser.one("#access").is_displayed(), "the header is not asked for")
    nothing_wrong("a page that wants a header")


def test_a_server_that_is_gone_is_told(serve, browser):
    server = serve(ROOT / "examples" / "repository")
    browser.open(server)
    browser.row("digits")
    server.stop()
    browser.wait_text("No state", "#status")
    # The last state stays, as what it was, and the browser says of its own that nothing answers.
    assert browser.row("digits")[2] == "READY"
    browser.wait_text("This is what was at", "#stale")
    marks = "return getComputedStyle(document.querySelector('.READY'), '::before').content"
    assert browser.run(marks) == '"was "'
    browser.driver.get("about:blank")
    said = [entry["message"] for entry in browser.driver.get_log("browser")]
    assert all("ERR_" in message for message in said), said


def test_a_server_that_hangs_is_told(serve, browser):
    server = serve(ROOT / "examples" / "repository")
    browser.open(server)
    browser.row("digits")
    assert not browser.one("#stale").is_displayed()
    server.process.send_signal(signal.SIGSTOP)
    try:
        browser.wait_text("no answer within 5 s", "#stale")
        browser.wait_text("No state", "#status")
    finally:
        server.process.send_signal(signal.SIGCONT)
    browser.wait(lambda: browser.text("#status") == "Ready" and not browser.one("#stale").is_displayed(), "still no state")
