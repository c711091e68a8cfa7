"""Other models of the server: loading them, unloading them, asking for them."""

import numpy as np

from . import channel
from .arguments import text
from .channel import CallFailed
from .tensor import Taken, Tensor, TritonModelException, failed, store


def ask(failure, what, **arguments):
    """Asks the server something about a model, from any thread."""
    return answer(failure, channel.server().open(what, **arguments))


def answer(failure, call):
    """Waits for the answer to such a question."""
    try:
        return call.next()
    except CallFailed as error:
        raise failed(failure, channel.server(), error) from None


def load_model(model_name, config="", files=None):
    """Loads a model, or loads it again; returns when it is ready. A configuration in JSON may take the place of the one
    in the repository, and files, by `file:` and their path, the place of the model's directory."""
    model_name, config = text("model_name", model_name), text("config", config)
    if files is not None and not isinstance(files, dict):
        raise TritonModelException(
            f"failed to load model '{model_name}', files should be a dictionary of file paths and file contents"
        )
    tensors = []
    for path, content in (files or {}).items():
        path = text("path", path)
        if not isinstance(content, (bytes, bytearray)):
            raise TypeError(f"the content of '{path}' has to be bytes, found type {type(content)}")
        tensors.append(Tensor(path, np.asarray(memoryview(content))))
    with Taken() as taken:
        files = store(tensors, channel.server(), taken)
        call = channel.server().open("load_model", model=model_name, config=config, files=files)
    answer("Failed to load model", call)


def unload_model(model_name, unload_dependents=False):
    """Unloads a model, and with it those that only it uses if that is wanted. Requests that it has are answered
    before it ends, which this does not wait for."""
    model_name = text("model_name", model_name)
    ask("Failed to unload model", "unload_model", model=model_name, dependents=bool(unload_dependents))


def is_model_ready(model_name, model_version=""):
    """Whether a version of another model takes requests; an empty version is the newest."""
    model_name, model_version = text("model_name", model_name), text("model_version", model_version)
    failure = "Failed to check model readiness"
    reason = f"failed to get model version from specified version string '{model_version}'"
    try:
        version = int(model_version) if model_version else -1
        if not -(1 << 63) <= version < 1 << 63:
            raise ValueError("out of range")
    except ValueError:
        reason = f"{reason} (details: stol), version should be an integral value > 0"
        raise failed(failure, channel.server(), reason) from None
    if model_version and version < 0:
        raise failed(failure, channel.server(), f"{reason}, version should be an integral value > 0")
    return ask(failure, "is_model_ready", model=model_name, version=version)["value"]
