"""Python-based backends: a folder with a model.py that runs all models of the backend."""

import json

import pytest
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from support.python_models import HEAD, INTERPRETER, add, ask, config
from support.server import ROOT
from test_python_environments import SCRIPT, file, link, pack

EXPLICIT = (INTERPRETER, "--model-control-mode=explicit")

# The backend of the documentation, the file of a model and its configuration.
DOCUMENT = (ROOT / "docs" / "python-models.md").read_text().split("## Python-based backends")[1]
SHOUT = DOCUMENT.split("```python\n")[1].split("```")[0]
SHOUT_CONFIG = DOCUMENT.split("```pbtxt\n")[1].split("```")[0]
SHOUT_MODEL = DOCUMENT.split("```json\n")[1].split("```")[0]

ABOUT = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_STRING", "dims": [-1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_STRING", "dims": [-1]})
        return config

    def initialize(self, args):
        with open(os.path.join(pb_utils.get_model_dir(), "text")) as file:
            self.about = {"text": file.read(), "repository": args["model_repository"], "module": __name__, "file": __file__}
        self.about["environment"] = os.environ.get("CONDA_PREFIX") is not None
        self.about["runtime"] = json.loads(args["model_config"])["runtime"]

    def execute(self, requests):
        tensor = pb_utils.Tensor("OUT", np.array([json.dumps(self.about)], dtype=object))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
"""


@pytest.fixture
def backends(tmp_path):
    folder = tmp_path / "backends"
    (folder / "about").mkdir(parents=True)
    (folder / "about" / "model.py").write_text(HEAD + ABOUT)
    return folder


def add_model(repository, name, settings, versions=(1,)):
    for version in versions:
        folder = repository.path / name / str(version)
        folder.mkdir(parents=True)
        (folder / "text").write_text(f"{name} {version}")
    (repository.path / name / "config.pbtxt").write_text(settings)


def test_the_backend_of_the_documentation(repository, serve, tmp_path):
    backend = tmp_path / "backends" / "shout"
    backend.mkdir(parents=True)
    (backend / "model.py").write_text(SHOUT)
    folder = repository.path / "loud" / "1"
    folder.mkdir(parents=True)
    (folder / "model.json").write_text(SHOUT_MODEL)
    (repository.path / "loud" / "config.pbtxt").write_text(SHOUT_CONFIG)
    server = serve(repository, INTERPRETER, f"--backend-directory={tmp_path}/backends")
    with httpclient.InferenceServerClient(server.http_address) as http:
        assert ask(http, "loud", "hello").decode() == "HELLO!!!"


def test_models_of_a_backend_share_its_script(repository, serve, backends):
    add_model(repository, "one", 'backend: "about" version_policy { all {} }', versions=(1, 2))
    add_model(repository, "two", 'backend: "about" runtime: "model.py"')
    server = serve(repository, *EXPLICIT, "--load-model=*", f"--backend-directory={backends}")
    with httpclient.InferenceServerClient(server.http_address) as http:
        for name, version in (("one", "1"), ("one", "2"), ("two", "1")):
            result = json.loads(ask(http, name, "", version=version))
            assert result == {
                "text": f"{name} {version}", "repository": str(repository.path / name), "module": "model",
                "file": str(backends / "about" / "model.py"), "environment": False, "runtime": "model.py",
            }  # fmt: skip
        settings = http.get_model_config("one")
        assert (settings["backend"], settings["runtime"]) == ("about", "model.py")
        assert http.get_model_metadata("one")["platform"] == "about"
        # The script counts when a model is loaded.
        script = backends / "about" / "model.py"
        script.write_text(script.read_text().replace('"module": __name__', '"module": "changed"'))
        http.unload_model("two")
        http.load_model("two")
        assert json.loads(ask(http, "two", ""))["module"] == "changed"


def test_a_backend_brings_an_environment_that_a_model_may_replace(repository, serve, backends):
    environment = [file("bin/python3", SCRIPT), file("conda-meta/history", "")]
    pack(backends / "about" / "pb_exec_env_model.py.tar.gz", environment)
    add_model(repository, "shared", 'backend: "about"')
    pack(repository.path / "own.tar.gz", [file("bin/python3", SCRIPT), link("bin/other", "python3")])
    own = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{repository.path}/own.tar.gz" }} }}'
    add_model(repository, "own", 'backend: "about"' + own)
    server = serve(repository, *EXPLICIT, "--load-model=*", f"--backend-directory={backends}")
    with httpclient.InferenceServerClient(server.http_address) as http:
        assert json.loads(ask(http, "shared", ""))["environment"] is True
        assert json.loads(ask(http, "own", ""))["environment"] is False
        settings = http.get_model_config("shared")["parameters"]["EXECUTION_ENV_PATH"]
        assert settings["string_value"] == f"{backends}/about/pb_exec_env_model.py.tar.gz"


def test_backends_that_are_not_there_are_told(repository, serve, backends):
    (backends / "library").mkdir()
    (backends / "library" / "libtriton_library.so").write_text("")
    (backends / "library" / "model.py").write_text(HEAD + ABOUT)
    (backends / "broken").mkdir()
    (backends / "broken" / "model.py").write_text("this is no Python")
    expected = {
        "missing": "unable to find backend library for backend 'missing', try specifying runtime on the model configuration.",
        "library": f"is the library '{backends}/library/libtriton_library.so', which this server does not load",
        "broken": "SyntaxError: invalid syntax",
        "../backends/about": f"backend library name '../backends/about' escapes backend directory '{backends}'",
    }
    for index, name in enumerate(expected):
        add_model(repository, f"m{index}", f'backend: "{name}"')
    add_model(repository, "named", 'backend: "nothing" runtime: "model.py"')
    add_model(repository, "other", 'backend: "about" runtime: "other.py"')
    server = serve(repository, *EXPLICIT, f"--backend-directory={backends}")
    with httpclient.InferenceServerClient(server.http_address) as http:

        def failure(model):
            with pytest.raises(InferenceServerException) as error:
                http.load_model(model)
            return str(error.value)

        for index, text in enumerate(expected.values()):
            assert text in failure(f"m{index}")
        assert failure("named").count(
            "unable to find Python backend based backend library 'model.py' for model 'named', searched: "
            f"'{backends}/nothing/model.py'"
        )
        assert "unable to find backend library 'other.py' for model 'other'" in failure("other")


def test_what_is_built_in_comes_first(repository, serve, backends):
    (backends / "identity").mkdir()
    (backends / "identity" / "model.py").write_text("raise ValueError('the script ran')")
    settings = config({"INPUT0": "FP32"}, {"OUTPUT0": "FP32"}).replace('"python"', '"identity"')
    repository.add("built_in", config=settings)
    repository.add("script", config=settings + 'runtime: "model.py"')
    server = serve(repository, *EXPLICIT, f"--backend-directory={backends}")
    with httpclient.InferenceServerClient(server.http_address) as http:
        http.load_model("built_in")
        with pytest.raises(InferenceServerException, match="ValueError: the script ran"):
            http.load_model("script")


def test_a_python_model_is_none_of_a_backend(repository, serve, backends):
    code = "class TritonPythonModel:\n    def execute(self, requests):\n        return [None for _ in requests]\n"
    add(repository, "plain", code, config({"IN": "STRING"}, {"OUT": "STRING"}))
    server = serve(repository, INTERPRETER, f"--backend-directory={backends}")
    with httpclient.InferenceServerClient(server.http_address) as http:
        assert "runtime" not in http.get_model_config("plain") or http.get_model_config("plain")["runtime"] == ""
