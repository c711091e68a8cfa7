"""Runs one instance of a model: takes tasks from the server until it asks for the end."""

import asyncio
import atexit
import gc
import importlib
import os
import select
import signal
import sys
import threading
import time
import traceback
from time import monotonic_ns

from . import logger
from .arguments import shortened
from .channel import Channel, ServerGone, connect, note_fork
from .messages import RELEASE_RESCHEDULE, InferenceRequest, InferenceResponse
from .model_config import ModelConfig
from .tensor import Taken

# The directory of the model's version; set with the model.
model_directory = ""

OURS = os.path.dirname(os.path.abspath(__file__))


def is_ours(file):
    """Whether code of the host, or of the import that it does, lies there."""
    return os.path.dirname(file) == OURS or file.startswith("<frozen importlib") or file == importlib.__file__


class Mistake(Exception):
    """The model does not do what is expected of it; the text says all."""


def explain(error):
    """The text of an exception as Triton's backend gives it: what it is, and where from the inside out."""
    if isinstance(error, Mistake):
        return str(error)
    lines, trace = [], error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not is_ours(code.co_filename):
            lines.append(f"  {code.co_filename}({trace.tb_lineno}): {code.co_name}\n")
        trace = trace.tb_next
    at = "\n\nAt:\n" + "".join(reversed(lines)) if lines else ""
    try:
        text = str(error)
    except Exception as another:
        text = f"<no text: its __str__ raised {type(another).__name__}>"
    return shortened(f"{type(error).__name__}: {text}{at}")


class Host:
    """The model and what it needs."""

    def __init__(self, channel):
        self.channel = channel
        self.module = None
        self.model = None
        self.loop = None
        self.background = set()
        self.process = os.getpid()
        self.is_decoupled = False
        self.name = ""

    def run(self):
        """Works until the server asks for the end."""
        tasks = {"load": self.load, "complete": self.complete, "initialize": self.initialize, "execute": self.execute,
                 "tidy": self.tidy}  # fmt: skip
        while True:
            task = self.channel.next_task()
            if task["do"] == "finalize":
                self.finalize()
                return
            tasks[task["do"]](task)
            # A batch may have been large.
            del task

    def attempt(self, work, *arguments):
        """Does the work and tells the server how it went."""
        try:
            self.channel.send("done", value=work(*arguments))
        except BaseException as error:
            self.channel.send("failed", error=explain(error))

    def load(self, task):
        """Imports the model's module."""
        self.attempt(self._load, task["directory"], task["version"], task["file"], task["backend"])

    def _load(self, directory, version, file, backend):
        global model_directory
        model_directory = os.path.join(directory, version)
        if backend is not None:
            # The script of a Python-based backend is one module for all its models.
            sys.path.append(backend)
            self.module = importlib.import_module("model")
            return
        # The model is imported as a module of its version, so that it may import its neighbours either way.
        sys.path += [model_directory, directory]
        self.module = importlib.import_module(f"{version}.{os.path.splitext(file)[0]}")

    def complete(self, task):
        """Lets the model complete its configuration."""
        self.attempt(self._complete, task["config"])

    def _complete(self, config):
        config = ModelConfig(config)
        config_name = config.as_dict()["name"]
        model = self.module.TritonPythonModel
        if hasattr(model, "auto_complete_config"):
            config = model.auto_complete_config(config)
            if not isinstance(config, ModelConfig):
                raise Mistake(
                    f"auto_complete_config function in model '{config_name}' must return a valid pb.ModelConfig object."
                )
        return config.as_dict()

    def initialize(self, task):
        """Makes the model's object."""
        self.attempt(self._initialize, task["arguments"], task["is_decoupled"])

    def _initialize(self, arguments, is_decoupled):
        self.name, self.is_decoupled = arguments["model_instance_name"], is_decoupled
        self.channel.instance = self.name
        model = self.module.TritonPythonModel()
        if hasattr(model, "initialize"):
            model.initialize(arguments)
        # One whose `initialize` failed is not finalized either.
        self.model = model
        InferenceRequest._models = self.channel

    def tidy(self, _):
        """Lets go of memory that is free."""
        self.channel.tidy()

    def execute(self, task):
        """Runs a batch, and gives back what its requests lie in when nobody holds them any more."""
        try:
            self._batch(task)
        finally:
            self.channel.give_back(task)

    def _batch(self, task):
        """Runs a batch. How long is told, since the server may have sent it while another ran."""
        start = monotonic_ns()
        requests = []
        try:
            wholes = self.channel.leases(task)
            for entry in task["requests"]:
                requests.append(InferenceRequest._received(entry, self.channel, wholes, self.is_decoupled))
            # A list of its own, which it may change: these are to be answered.
            returned = self._execute(requests.copy())
            self._leave_child(0)
            with Taken() as taken:
                responses = self._responses(requests, returned, taken, wholes)
                again = ""
                # Most models never ask for that, and nobody looks at each request then.
                if InferenceRequest._are_released:
                    places = [place for place, request in enumerate(requests) if request._runs_again()]
                    again = f'"again":{places},'
                took = monotonic_ns() - start
                self.channel.send_text(f'{{"executed":{{"responses":{responses},{again}"ns":{took}}}}}')
        except BaseException as error:
            self._leave_child(1)
            text = f"Failed to process the request(s) for model '{self.name}', message: {explain(error)}"
            logger.Logger.log_error(text)
            for request in requests:
                request.get_response_sender()._close()
            self.channel.send("executed", error=text, ns=monotonic_ns() - start)

    def _leave_child(self, status):
        """A process that the model forked ends here: the server knows its parent alone."""
        if os.getpid() != self.process:
            sys.stdout.flush()
            os._exit(status)

    def _execute(self, requests):
        if not hasattr(self.model, "execute"):
            path = self.module.__file__
            raise Mistake(f"Python model {path} does not implement `execute` method.")
        returned = self.model.execute(requests)
        # Nearly always a list, and to find that it is no coroutine takes long.
        if type(returned) is list or not asyncio.iscoroutine(returned):
            return returned
        future = asyncio.run_coroutine_threadsafe(returned, self._event_loop())
        if not self.is_decoupled:
            # Without the functions of `future.result` in what the error tells.
            if (error := future.exception()) is not None:
                raise error
            return future.result()
        self.background.add(future)
        future.add_done_callback(self._background_done)
        return None

    def _event_loop(self):
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
            threading.Thread(target=self.loop.run_forever, daemon=True).start()
        return self.loop

    def _background_done(self, future):
        self.background.discard(future)
        if not future.cancelled() and future.exception() is not None:
            logger.Logger.log_error(explain(future.exception()))

    def _responses(self, requests, returned, taken, kept):
        """What `execute` returned, as JSON; what it lies in is `taken`, or in what is `kept`, the segments of the requests."""
        if returned is None:
            for request in requests:
                # The server hears of it when a request is answered by nobody.
                request.get_response_sender()
            return "null"
        if self.is_decoupled:
            raise Mistake(
                f"Python model '{self.name}' is using the decoupled mode and the execute function must return None."
            )
        if not isinstance(returned, list):
            raise Mistake(f"Expected a list in the execute return, found type '{type(returned)}'.")
        if len(requests) != len(returned):
            raise Mistake(
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(returned)}\n"
            )
        messages = []
        for request, response in zip(requests, returned):
            if response is None:
                request.get_response_sender()
                messages.append("null")
                continue
            if request._release_flags == RELEASE_RESCHEDULE:
                raise Mistake(
                    "Expected a None object in the execute function return list for reschduled request, found type "
                    f"'{type(response)}'."
                )
            if not isinstance(response, InferenceResponse):
                raise Mistake(
                    "Expected an 'InferenceResponse' object in the execute function return list, found type "
                    f"'{type(response)}'."
                )
            request._count_returned(response)
            if request._is_stand_in():
                messages.append("null")
            else:
                messages.append(response._json(self.channel, request._wanted, taken, kept))
        return f"[{','.join(messages)}]"

    def finalize(self):
        """Ends the model."""
        InferenceRequest._models = None
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.loop.stop)
        self.attempt(self._finalize)

    def _finalize(self):
        try:
            if self.model is not None and hasattr(self.model, "finalize"):
                self.model.finalize()
        finally:
            # What the interpreter does at its end: the server waits for the answer to this, and for nothing else.
            self.model = None
            atexit._run_exitfuncs()
            gc.collect()


# What the server sends its instances, which it ends itself when their requests are answered.
SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Which signals a thread that forks did not get before.
forking = threading.local()


def hold_signals():
    """Until a fork is done: one that came to the new process before would meet the handlers of this one, and be lost."""
    forking.held = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def release_signals():
    signal.pthread_sigmask(signal.SIG_SETMASK, forking.held)


def default_signals():
    """Signals end this process again."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    release_signals()


def take_signals():
    """Signals do not end this process. They end those that the model forks: these are the model's to end, as `Pool.terminate` does."""
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    os.register_at_fork(before=hold_signals, after_in_parent=release_signals, after_in_child=default_signals)


def end_with_server(descriptor):
    """Ends this process when the server has gone, also while the model is busy. One that ends in order asks first."""
    gone = select.poll()
    # Nothing is asked for: that the other end is closed is told always.
    gone.register(descriptor, 0)
    gone.poll()
    time.sleep(1)
    os._exit(1)


def main():
    """Takes the socket from standard input, which models find empty."""
    descriptor = os.dup(0)
    channel = Channel(descriptor)
    threading.Thread(target=end_with_server, args=[descriptor], daemon=True).start()
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    take_signals()
    os.register_at_fork(after_in_child=note_fork)
    connect(channel)
    status = 0
    try:
        Host(channel).run()
    except ServerGone:
        pass
    except BaseException:
        traceback.print_exc()
        status = 1
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        # Threads of the model do not hold the process.
        os._exit(status)
