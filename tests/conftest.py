"""Fixtures. `$HALIMEDE_BIN` is the binary under test; tests/README.md says how to test a real tritonserver."""

import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from support import models, peer  # noqa: E402
from support.server import ROOT, Server, peer_command  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "halimede_only: behaviour of ours that tritonserver 2.51.0 does not have")


def pytest_collection_modifyitems(items):
    if peer_command():
        for item in items:
            if marker := item.get_closest_marker("halimede_only"):
                reason = marker.args[0] if marker.args else "behaviour of ours"
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Verdicts, tuned choices and packed weights of tests are none of the user's."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session", autouse=True)
def logs(tmp_path_factory):
    """Logs of servers go when pytest's folders do, those of servers that were to fail as well."""
    Server.logs = tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="session")
def on_peer():
    """True when a real tritonserver is under test."""
    return peer_command() is not None


@pytest.fixture(scope="session")
def repository_for(tmp_path_factory):
    """Turns a repository into one that the server under test can load."""

    def prepare(path):
        if not peer_command():
            return path
        target = tmp_path_factory.mktemp("peer")
        return peer.copy(path, target)

    return prepare


@pytest.fixture(scope="session")
def server(tmp_path_factory, repository_for):
    """One server with the standard repository, shared by the tests that change nothing."""
    repository = models.standard(tmp_path_factory.mktemp("standard"))
    with Server([repository_for(repository.path)]) as running:
        yield running


@pytest.fixture(scope="session")
def http(server):
    return server.http


@pytest.fixture(scope="session")
def examples(repository_for):
    """A server with the repository that ships with the project."""
    with Server([repository_for(ROOT / "examples" / "repository")]) as running:
        yield running


@pytest.fixture
def serve(repository_for):
    """Starts servers that end with the test, each with status 0 unless the test stopped it."""
    running = []

    def start(repository, *flags, **options):
        path = repository.path if isinstance(repository, models.Repository) else repository
        one = Server([repository_for(path)], *flags, **options)
        running.append(one)
        return one

    yield start
    for one in running:
        if one.process.poll() is None:
            status = one.stop()
            assert status == 0, f"the server ended with {status}:\n{one.log_text()[-4000:]}"
        one.log.close()
        os.unlink(one.log.name)


@pytest.fixture
def repository(tmp_path):
    """An empty repository of the test's own."""
    return models.Repository(tmp_path / "models")


@pytest.fixture
def example_copy(tmp_path):
    """A copy of the example repository that the test may change."""
    return Path(shutil.copytree(ROOT / "examples" / "repository", tmp_path / "examples"))


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    paths = shutil.which("chromium"), shutil.which("chromedriver")
    if None in paths:
        assert not os.environ.get("HALIMEDE_EXPECT_CHROMIUM"), "chromium and chromedriver are to be installed here"
        pytest.skip("chromium and chromedriver are not installed")
    from support.browser import start_driver

    driver = start_driver(*paths, tmp_path_factory.mktemp("chromium"))
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium):
    from support.browser import Browser

    chromium.get_log("browser")
    yield (browser := Browser(chromium))
    browser.prefer(None)
    # No page asks a server that has ended.
    chromium.get("about:blank")
    # What the browser refuses, for the sake of the page's own rules or of a defect in it, is said there. A status that is
    # no success is said there, too, and the tests look at those.
    said = [entry["message"] for entry in chromium.get_log("browser") if "the server responded with a status" not in entry["message"]]
    assert not said, said
