"""Environments of Python models: archives as conda-pack and venv-pack make them, folders, interpreters."""

import io
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from support.python_models import INTERPRETER, add, ask, config
from support.server import Server
from support.waiting import wait_until

TEXTS = config({"IN": "STRING"}, {"OUT": "STRING"})

# Tells of its environment.
TELLS = """
import packed


class TritonPythonModel:
    def execute(self, requests):
        about = {"text": packed.text, "path": os.environ["PATH"].split(":")[0], "file": packed.__file__}
        about["prefix"] = os.environ.get("CONDA_PREFIX")
        tensor = pb_utils.Tensor("OUT", np.array([json.dumps(about)], dtype=object))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
"""

# An interpreter that lies elsewhere, with the packages of the environment around it.
SCRIPT = f"""#!/bin/sh
here=$(cd "$(dirname "$0")/.." && pwd)
PYTHONPATH="$here/lib/packages" exec {sys.executable} "$@"
"""


def file(name, text, mode=0o755):
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(text.encode()), mode
    return entry, text.encode()


def link(name, target, kind=tarfile.SYMTYPE):
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry, b""


def environment(text="as packed"):
    """What an environment holds."""
    return [
        file("bin/python3.8", SCRIPT), link("bin/python3", "python3.8"), file("conda-meta/history", ""),
        file("lib/packages/packed.py", f"text = {text!r}\n"),
    ]  # fmt: skip


def pack(path, entries, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for entry, content in entries:
            archive.addfile(entry, io.BytesIO(content))


def using(path):
    return TEXTS + f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{path}" }} }}\n'


@pytest.fixture
def places(tmp_path):
    """Where servers keep temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


def unpacked(places):
    return sorted(places.glob("halimede-python-*/environments/*"))


def told(server, model):
    with httpclient.InferenceServerClient(server.http_address) as http:
        return json.loads(ask(http, model, ""))


def test_models_share_an_archive_that_is_unpacked_once(repository, places):
    for name in ("one", "two"):
        add(repository, name, TELLS, using("$$TRITON_MODEL_DIRECTORY/../environment.tar.gz"))
    pack(repository.path / "environment.tar.gz", environment())
    explicit = ("--model-control-mode=explicit", "--load-model=*")
    with Server([repository.path], *explicit, env={"TMPDIR": str(places)}) as server:
        (folder,) = unpacked(places)
        for name in ("one", "two"):
            about = told(server, name)
            assert (about["text"], about["path"]) == ("as packed", str(folder / "bin"))
            assert about["prefix"] == str(folder) and about["file"].startswith(str(folder))
        assert len(re.findall("Extracting Python execution env", server.log_text())) == 1
        # What changed is unpacked again, for those that are loaded from then on.
        pack(repository.path / "environment.tar.gz", environment("of later"))
        with httpclient.InferenceServerClient(server.http_address) as http:
            http.unload_model("one")
            http.load_model("one")
            assert (told(server, "one")["text"], told(server, "two")["text"]) == ("of later", "as packed")
            wait_until(lambda: len(unpacked(places)) == 2, "there are two environments")
            http.unload_model("two")
            wait_until(lambda: len(unpacked(places)) == 1, "the environment of before is gone")
    assert list(places.iterdir()) == []


def test_a_virtual_environment_works_packed_and_as_a_folder(repository, places):
    folder = repository.path / "packed" / "environment"
    add(repository, "packed", TELLS, using("$$TRITON_MODEL_DIRECTORY/environment.tgz"))
    add(repository, "folder", TELLS, using(folder))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "numpy.pth").write_text(f"{Path(np.__file__).parent.parent}\n")
    (packages / "packed.py").write_text("text = 'virtual'\n")
    with tarfile.open(repository.path / "packed" / "environment.tgz", "w:gz") as archive:
        for name in sorted(folder.rglob("*")):
            archive.add(name, name.relative_to(folder), recursive=False)
    with Server([repository.path], env={"TMPDIR": str(places)}) as server:
        (place,) = unpacked(places)
        assert told(server, "packed")["file"].startswith(str(place))
        assert told(server, "folder")["file"].startswith(str(folder))
        assert told(server, "folder")["text"] == "virtual"


BAD = {
    "slip": ([file("../evil", "x")], "its entry '../evil' leaves the environment"),
    "absolute": ([file("/tmp/halimede-evil", "x")], "its entry '/tmp/halimede-evil' leaves the environment"),
    "link": ([link("lib/out", "../../../..")], "its entry 'lib/out' is a link that leaves the environment"),
    "through": ([link("away", "lib"), file("away/x", "x")], "its entry 'away/x' lies behind a link"),
    "hard": ([link("lib/copy", "../../evil", tarfile.LNKTYPE)], "its entry 'lib/copy' is a link that leaves the environment"),
    "pipe": ([link("lib/pipe", "", tarfile.FIFOTYPE)], "its entry 'lib/pipe' is neither a file nor a folder nor a link"),
}  # fmt: skip


def test_archives_that_are_wrong_leave_nothing(repository, places):
    expected = {}
    for name, (entries, why) in BAD.items():
        pack(repository.path / f"{name}.tar.gz", environment() + entries)
        expected[name] = f"'{repository.path}/{name}.tar.gz' cannot be unpacked: {why}"
    pack(repository.path / "whole.tar.gz", environment())
    whole = (repository.path / "whole.tar.gz").read_bytes()
    (repository.path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    expected["cut"] = f"'{repository.path}/cut.tar.gz' cannot be unpacked: "
    (repository.path / "text.tar.gz").write_text("no archive")
    expected["text"] = "it is no tar archive, compressed with gzip or not, and no interpreter either"
    pack(repository.path / "empty.tar.gz", [file("lib/packages/packed.py", "")])
    expected["empty"] = f"there is no bin/python3 in '{repository.path}/empty.tar.gz'"
    expected["missing"] = f"Failed to get the canonical path for {repository.path}/missing.tar.gz."
    for name in expected:
        add(repository, name, TELLS, using(f"{repository.path}/{name}.tar.gz"))
    with Server([repository.path], INTERPRETER, "--model-control-mode=explicit", env={"TMPDIR": str(places)}) as server:
        with httpclient.InferenceServerClient(server.http_address) as http:
            for name, text in expected.items():
                with pytest.raises(InferenceServerException) as error:
                    http.load_model(name)
                assert text in str(error.value), name
                # Nothing is kept of what failed; the one without an interpreter is an environment all the same.
                assert len(unpacked(places)) <= (name in ("empty", "missing")), name
    assert list(places.iterdir()) == [] and not (places.parent / "evil").exists()


def test_an_archive_without_numpy_says_so(repository, places):
    pack(repository.path / "bare.tar", [file("bin/python3", f"#!/bin/sh\nexec {sys.executable} -S -I \"$@\"\n")], "w")
    add(repository, "bare", TELLS, using(f"{repository.path}/bare.tar"))
    with Server([repository.path], "--model-control-mode=explicit", env={"TMPDIR": str(places)}) as server:
        with httpclient.InferenceServerClient(server.http_address) as http:
            with pytest.raises(InferenceServerException, match="cannot import numpy, which Python models need"):
                http.load_model("bare")
