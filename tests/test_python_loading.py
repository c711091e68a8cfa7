"""Python models that load and unload other models."""

import contextlib
import json
import threading
import time

import numpy as np
import pytest
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from support import models
from support.python_models import CPU, INTERPRETER, RUNS, add, ask, config
from support.server import ROOT, Server
from support.waiting import wait_until

TEXTS = config({"IN": "STRING"}, {"OUT": "STRING"})
EXPLICIT = (INTERPRETER, "--model-control-mode=explicit")
# Triton's words before what the server says, of an instance.
OF = "Failed to process the request for model '{}_0_0', message: ".format
FAILED = f"TritonModelException: Failed to load model: {OF('runs')}"

# Answers with its version, and the text of its file.
VERSIONED = """
class TritonPythonModel:
    def initialize(self, args):
        with open(os.path.join(pb_utils.get_model_dir(), "text")) as file:
            self.text = args["model_version"] + file.read()

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([self.text], object))]) for _ in requests]
"""

# Does in `initialize` and `finalize` what its configuration says.
DOES = """
class TritonPythonModel:
    def initialize(self, args):
        self.config = json.loads(args["model_config"])
        self.did = self.do("initialize")
        print("initialize:", self.did, flush=True)

    def do(self, when):
        text = self.config["parameters"].get(when, {}).get("string_value")
        try:
            return str(eval(text)) if text else ""
        except pb_utils.TritonModelException as error:
            return str(error)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([self.did], object))]) for _ in requests]

    def finalize(self):
        print("finalize:", self.do("finalize"), flush=True)
"""


def does(repository, name, **what):
    parameters = [f'parameters {{ key: "{when}" value {{ string_value: "{code}" }} }}' for when, code in what.items()]
    return add(repository, name, DOES, TEXTS + "\n".join(parameters))


@pytest.fixture
def versioned(repository):
    add(repository, "other", VERSIONED, TEXTS)
    for version in (1, 2):
        folder = repository.path / "other" / str(version)
        folder.mkdir(exist_ok=True)
        (folder / "model.py").write_text((repository.path / "other" / "1" / "model.py").read_text())
        (folder / "text").write_text(" from the repository")
    return repository


@pytest.fixture
def runs(versioned, serve):
    """A client, and a function that lets a model run a text."""
    server = serve(add(versioned, "runs", RUNS, TEXTS), *EXPLICIT, "--load-model=runs")
    with httpclient.InferenceServerClient(server.http_address) as http:
        yield http, lambda *lines: ask(http, "runs", "\n".join(lines)).decode()


def ready(*arguments):
    return f"result = pb_utils.is_model_ready({', '.join(map(repr, arguments))})"


def test_a_model_loads_and_unloads_another(runs):
    http, run = runs
    assert run(ready("other")) == "False"
    assert run("result = pb_utils.load_model('other')", ready("other")) == "True"
    assert ask(http, "other", "").decode() == "2 from the repository"
    assert [run(ready("other", version)) for version in ("1", "2", "3")] == ["False", "True", "False"]
    assert run("result = pb_utils.unload_model(model_name='other', unload_dependents=True)", ready("other")) == "False"
    # What is not loaded can be unloaded, as clients can.
    assert run("result = pb_utils.unload_model('other')") == "None"


def test_a_configuration_and_files_replace_those_of_the_repository(runs):
    http, run = runs
    settings = {
        "backend": "python", "version_policy": {"specific": {"versions": [1]}}, "instance_group": [{"kind": "KIND_CPU"}],
        "input": [{"name": "IN", "data_type": "TYPE_STRING", "dims": [-1]}],
        "output": [{"name": "OUT", "data_type": "TYPE_STRING", "dims": [-1]}],
    }  # fmt: skip
    assert run(f"pb_utils.load_model('other', config={json.dumps(json.dumps(settings))})") == "nothing"
    assert ask(http, "other", "").decode() == "1 from the repository"
    del settings["version_policy"]
    lines = [
        "path = os.path.join(os.path.dirname(os.path.dirname(pb_utils.get_model_dir())), 'other', '1', 'model.py')",
        "files = {'file:7/model.py': open(path, 'rb').read(), 'file:7/text': b' that was sent', 'file:7/empty': b''}",
        f"config = {json.dumps(json.dumps(settings))}",
    ]
    assert run(*lines, "pb_utils.load_model('sent', config, files)", ready("sent", "7")) == "True"
    assert ask(http, "sent", "").decode() == "7 that was sent"
    # 1 MB and more travel as well.
    assert run("files['file:7/text'] = b'x' * 3000000", "pb_utils.load_model('sent', config, files)") == "nothing"
    assert len(ask(http, "sent", "")) == 3000001


def test_what_cannot_be_loaded_is_told(runs):
    _, run = runs
    assert run("pb_utils.load_model('missing')") == (
        f"{FAILED}failed to load 'missing', failed to poll from model repository"
    )
    assert run("pb_utils.load_model('other', 'no json')").startswith(FAILED)
    assert run("pb_utils.load_model('other', '', {'file:1/x': b'y'})").startswith(FAILED)
    assert run("pb_utils.load_model('other', '{}', {'1/x': b'y'})") == (
        f"{FAILED}Unrecognized load parameter '1/x' with type 'BYTES'"
    )
    assert run("pb_utils.load_model('other', '{}', ['file'])") == (
        "TritonModelException: failed to load model 'other', files should be a dictionary of file paths and file contents"
    )
    assert run("pb_utils.load_model('other', '{}', {'file:1/x': 'text'})").startswith("TypeError: ")
    assert run("pb_utils.unload_model(3)").startswith("TypeError: ")
    failure = (
        f"TritonModelException: Failed to check model readiness: {OF('runs')}failed to get model version from specified "
        "version "
    )
    assert run(ready("other", "x")) == f"{failure}string 'x' (details: stol), version should be an integral value > 0"
    assert run(ready("other", "-3")) == f"{failure}string '-3', version should be an integral value > 0"
    assert run(ready("other")) == "False"


def test_models_are_loaded_by_request_only_in_explicit_mode(repository, serve):
    server = serve(add(repository, "runs", RUNS, TEXTS), INTERPRETER)
    with httpclient.InferenceServerClient(server.http_address) as http:
        for what in ("load", "unload"):
            assert ask(http, "runs", f"pb_utils.{what}_model('runs')").decode() == (
                f"TritonModelException: Failed to {what} model: {OF('runs')}explicit model load / unload is not "
                "allowed if polling is enabled"
            )
        assert ask(http, "runs", ready("runs")).decode() == "True"


def test_models_are_loaded_from_initialize_and_unloaded_from_finalize(versioned, serve):
    load = "pb_utils.load_model('{}') or pb_utils.is_model_ready('{}')"
    does(versioned, "first", initialize=load.format("second", "second"), finalize="pb_utils.unload_model('second')")
    does(versioned, "second", initialize=load.format("other", "other"), finalize="pb_utils.unload_model('other')")
    # A load that waits for another one needs no place of its own.
    server = serve(versioned, *EXPLICIT, "--model-load-thread-count=1")
    with httpclient.InferenceServerClient(server.http_address) as http:
        for _ in range(2):
            http.load_model("first")
            assert [ask(http, name, "").decode() for name in ("first", "second")] == ["True", "True"]
            assert ask(http, "other", "").decode() == "2 from the repository"
            http.unload_model("first")
            names = ("first", "second", "other")
            wait_until(lambda: not any(http.is_model_ready(name) for name in names), "the models are unloaded")
            reasons = lambda: [entry.get("reason") for entry in http.get_model_repository_index()]  # noqa: E731
            wait_until(lambda: reasons().count("unloaded") == 3, "they have ended")


def test_a_model_that_is_loaded_waits_for_no_load_that_waits_for_it(repository, serve):
    does(repository, "own", initialize="pb_utils.load_model('own')", finalize="pb_utils.load_model('own')")
    does(repository, "one", initialize="pb_utils.load_model('two')")
    does(repository, "two", initialize="pb_utils.unload_model('one')")
    server = serve(repository, *EXPLICIT)

    def refused(what, model, asker):
        return (
            f"Failed to {what} model: {OF(asker)}model '{model}', or one that belongs to it, is being loaded or unloaded, and "
            "that may wait for the model that asks: try again when it is over"
        )

    with httpclient.InferenceServerClient(server.http_address, concurrency=2, network_timeout=60) as http:
        http.load_model("own")
        server.wait_log(f"initialize: {refused('load', 'own', 'own')}")
        # It has no request, so that it ends while it is unloaded.
        http.unload_model("own")
        server.wait_log(f"finalize: Failed to load model: {OF('own')}model 'own'")
        http.load_model("one")
        assert ask(http, "one", "").decode() == "None"
        assert ask(http, "two", "").decode() == refused("unload", "one", "two")


def test_a_load_of_a_model_that_is_being_loaded_waits(repository, serve, tmp_path):
    gate = tmp_path / "gate"
    wait = f"print('waits', flush=True) or [time.sleep(0.01) for _ in iter(lambda: os.path.exists('{gate}'), True)]"
    does(repository, "slow", initialize=wait)
    server = serve(repository, *EXPLICIT)
    found = []

    def load():
        with httpclient.InferenceServerClient(server.http_address, network_timeout=60) as http:
            http.load_model("slow")
            found.append(http.is_model_ready("slow"))

    threads = [threading.Thread(target=load) for _ in range(3)]
    threads[0].start()
    server.wait_log("waits")
    [thread.start() for thread in threads[1:]]
    # Long enough for a load that does not wait to be over.
    time.sleep(0.3)
    gate.touch()
    [thread.join() for thread in threads]
    assert found == [True] * 3


def test_nothing_is_loaded_while_the_server_starts_or_ends(versioned, serve):
    does(versioned, "early", initialize="pb_utils.load_model('other')", finalize="pb_utils.unload_model('other')")
    server = serve(versioned, *EXPLICIT, "--load-model=early")
    with httpclient.InferenceServerClient(server.http_address) as http:
        assert ask(http, "early", "").decode() == f"Failed to load model: {OF('early')}Server not ready"
        assert not http.is_model_ready("other")
    assert server.stop() == 0
    assert f"finalize: Failed to unload model: {OF('early')}Server not ready" in server.log_text()


def test_a_model_changes_itself(versioned, serve):
    add(versioned, "runs", RUNS, TEXTS + "\n" + "parameters { key: 'a' value { string_value: 'b' } }")
    server = serve(versioned, *EXPLICIT, "--load-model=runs")
    with httpclient.InferenceServerClient(server.http_address, network_timeout=60) as http:
        # Other instances: the one that asks may be one that ends.
        path = versioned.path / "runs" / "config.pbtxt"
        text = path.read_text()
        for count in (3, 1, 2):
            path.write_text(text.replace(CPU, f"instance_group [ {{ kind: KIND_CPU count: {count} }} ]\n"))
            assert ask(http, "runs", "pb_utils.load_model('runs')").decode() == "nothing"
        # Another model in its place, which knows nothing of what this one made.
        path.write_text(text.replace("'b'", "'c'"))
        assert ask(http, "runs", "global x\nx = 3\npb_utils.load_model('runs')\nresult = x").decode() == "3"
        assert ask(http, "runs", "result = x").decode().startswith("NameError")
        assert ask(http, "runs", "pb_utils.unload_model('runs')\nresult = pb_utils.is_model_ready('runs')").decode() == "False"
        with pytest.raises(InferenceServerException):
            ask(http, "runs", "")


def test_coroutines_load_models_beside_each_other(versioned, serve):
    code = """
import asyncio


class TritonPythonModel:
    async def load(self, name):
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, pb_utils.load_model, name)
        return await loop.run_in_executor(None, pb_utils.is_model_ready, name)

    async def execute(self, requests):
        names = requests[0].inputs()[0].as_numpy()
        ready = await asyncio.gather(*(self.load(name.decode()) for name in names))
        tensor = pb_utils.Tensor("OUT", np.array([str(one) for one in ready], object))
        return [pb_utils.InferenceResponse([tensor])]
"""
    add(versioned, "loads", code, TEXTS)
    names = ["other", "second", "third"]
    for name in names[1:]:
        does(versioned, name)
    server = serve(versioned, *EXPLICIT, "--load-model=loads")
    with httpclient.InferenceServerClient(server.http_address) as http:
        tensor = httpclient.InferInput("IN", [3], "BYTES")
        tensor.set_data_from_numpy(np.array(names, dtype=object))
        assert [text.decode() for text in http.infer("loads", [tensor]).as_numpy("OUT")] == ["True"] * 3


def test_many_threads_load_and_unload_at_once(runs, versioned):
    _, run = runs
    for index in range(3):
        does(versioned, f"extra_{index}")
    code = """
import random
def work(seed):
    dice = random.Random(seed)
    for _ in range(4):
        name = "extra_%d" % dice.randrange(3)
        try:
            (pb_utils.load_model if dice.random() < 0.6 else pb_utils.unload_model)(name)
        except pb_utils.TritonModelException as error:
            errors.append(str(error))
errors = []
globals().update(locals())
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
result = errors
"""
    assert run(code) == "[]"
    assert run("[pb_utils.load_model('extra_%d' % index) for index in range(3)]", ready("extra_0")) == "True"


def test_the_model_of_the_documentation(versioned, serve):
    document = (ROOT / "docs" / "python-models.md").read_text().split("## Loading other models")[1]
    add(versioned, "keeper", "import" + document.split("```python\nimport")[1].split("```")[0], TEXTS)
    server = serve(versioned, *EXPLICIT, "--load-model=keeper")
    with httpclient.InferenceServerClient(server.http_address) as http:
        assert ask(http, "keeper", "other").decode() == "loaded other"
        assert http.is_model_ready("other")
        assert ask(http, "keeper", "missing").decode().startswith("Failed to load model: ")


def test_a_server_ends_in_time_while_a_model_is_being_loaded(tmp_path):
    repository = models.Repository(tmp_path / "models")
    endless = """
class TritonPythonModel:
    def initialize(self, args):
        time.sleep(600)
"""
    add(repository, "endless", endless, config({"IN": "FP32"}, {"OUT": "FP32"}))
    server = Server([repository.path], INTERPRETER, "--exit-timeout-secs=1", "--model-control-mode=explicit")

    def load():
        with httpclient.InferenceServerClient(server.http_address) as http, contextlib.suppress(Exception):
            http.load_model("endless")

    thread = threading.Thread(target=load)
    thread.start()
    with httpclient.InferenceServerClient(server.http_address) as http:
        wait_until(lambda: http.get_model_repository_index()[0].get("state") == "LOADING", "the model is being loaded")
    assert server.stop() == 1
    assert "Exit timeout expired. Exiting immediately." in server.log_text()
    thread.join()
