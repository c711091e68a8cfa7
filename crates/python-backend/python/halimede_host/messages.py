"""Requests, responses and the senders of responses, as models see them."""

import asyncio
import enum
import threading

import numpy as np

from .arguments import check_kind, shortened, text, whole
from .channel import IN_MESSAGE, JSON, CallFailed, is_forked, quoted
from .tensor import Taken, Tensor, TritonModelException, store, stored_json

FLAG_FINAL = 1
# The number of requests that the server made up.
STAND_IN = 0
RELEASE_ALL, RELEASE_RESCHEDULE = 1, 2
# What a parameter that is a number may be.
INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1


class ErrorCode(enum.IntEnum):
    """What kind of error it is. Printed as Triton's prints."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)

    def __str__(self):
        return f"__ErrorCode.{self.name}"

    def __repr__(self):
        return f"<{self}: {self.value}>"

    def __format__(self, specification):
        return format(str(self), specification)


class TritonError:
    """Why a request failed."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = ErrorCode

    def __init__(self, message, code=INTERNAL):
        self._message = shortened(text("message", message))
        try:
            self._code = ErrorCode(code)
        except ValueError:
            raise TypeError(
                f"code has to be one of TritonError's, such as TritonError.INTERNAL, found {code!r} of type {type(code)}"
            ) from None

    def message(self):
        """The text."""
        return self._message

    def code(self):
        """One of the codes of this class."""
        return self._code


class MemoryType(enum.IntEnum):
    """Where tensors lie."""

    TRITONSERVER_MEMORY_GPU, TRITONSERVER_MEMORY_CPU = range(2)


TRITONSERVER_MEMORY_GPU, TRITONSERVER_MEMORY_CPU = MemoryType


class PreferredMemory:
    """Where a model wants the answers of other models; there is one kind of memory."""

    def __init__(self, preferred_memory_type, preferred_device_id=0):
        check_kind("preferred_memory_type", preferred_memory_type, MemoryType)
        self._kind = preferred_memory_type
        self._device = whole("preferred_device_id", preferred_device_id, 64, is_signed=True)


class InferenceTrace:
    """The trace that a request belongs to, if any. A request for another model that gets it belongs there too."""

    __slots__ = ("_origin", "_context", "__weakref__")

    def __init__(self):
        # The number of the request that is traced.
        self._origin, self._context = None, None

    @classmethod
    def _received(cls, origin, context):
        trace = cls()
        trace._origin, trace._context = origin, context
        return trace

    def get_context(self):
        """What a program needs to go on with the trace, as JSON with `traceparent`; None where no collector gets it."""
        return self._context


def parameters_json(parameters):
    """Parameters as text, checked."""
    if parameters is not None and not isinstance(parameters, dict):
        raise TritonModelException(f"Expect dict, got {type(parameters)}")
    if not parameters:
        return "{}"
    for name, value in parameters.items():
        if not isinstance(name, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(name)}")
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
        if isinstance(value, int) and not INT_MIN <= value <= INT_MAX:
            raise TritonModelException(f"the parameter {shortened(name)!r} is beyond the whole numbers that 64 bits hold with a sign")
    return JSON.encode(parameters)


class InferenceResponse:
    """The answer to a request: tensors, or an error."""

    __slots__ = ("_tensors", "_error", "_parameters", "__weakref__")

    def __init__(self, output_tensors=(), error=None, parameters=None):
        tensors = list(output_tensors)
        for tensor in tensors:
            # Without a call: every response has some.
            if type(tensor) is not Tensor:
                if tensor is None:
                    raise TritonModelException("Output tensor for inference response should not be empty.")
                check_kind("output_tensors", tensor, Tensor)
        if error is not None:
            check_kind("error", error, TritonError)
        self._tensors, self._error = tensors, error
        self._parameters = "{}" if parameters is None else parameters_json(parameters)

    def output_tensors(self):
        """The tensors."""
        return self._tensors

    def has_error(self):
        """Whether it is an error."""
        return self._error is not None

    def error(self):
        """The error, or None."""
        return self._error

    def parameters(self):
        """The parameters, as JSON."""
        return self._parameters

    @classmethod
    def _received(cls, answer, channel):
        answer = answer.get("response")
        if answer is None:
            return cls([])
        if answer.get("failure") is not None:
            code, text = answer["failure"]
            return cls([], TritonError(text, code))
        try:
            response = cls(_tensors(answer, channel))
        finally:
            channel.give_back(answer)
        response._parameters = answer["parameters"]
        return response

    def _json(self, channel, wanted, taken, kept):
        """The response as the server is told of it; what it lies in is `taken`."""
        if self._error is not None:
            return JSON.encode({"error": [self._error.code(), self._error.message()]})
        tensors = [tensor for tensor in self._tensors if tensor._name in wanted]
        outputs = stored_json(tensors, channel, taken, kept)
        if self._parameters == "{}":
            return f'{{"outputs":[{outputs}]}}'
        return f'{{"outputs":[{outputs}],"parameters":{quoted(self._parameters)}}}'


def _tensors(answer, channel):
    """The tensors of another model's answer."""
    wholes = channel.leases(answer)
    if (along := answer.get("bytes")) is not None:
        wholes[IN_MESSAGE] = np.frombuffer(along, np.uint8)
    return [Tensor._received(entry, wholes) for entry in answer["outputs"]]


class InferenceResponseSender:
    """Sends the responses to one request, from any thread, also after `execute` returned."""

    __slots__ = ("_channel", "_handle", "_wanted", "_is_decoupled", "_lock", "_is_closed", "_count", "__weakref__")

    def __init__(self, channel, handle, wanted, is_decoupled):
        self._channel, self._handle, self._wanted = channel, handle, wanted
        self._is_decoupled = is_decoupled
        self._lock = threading.Lock()
        self._is_closed, self._count = False, 0

    def send(self, response=None, flags=0):
        """Sends a response, or says with `TRITONSERVER_RESPONSE_COMPLETE_FINAL` that none follows."""
        if flags not in (0, FLAG_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if flags == 0 and response is None:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError("send(response: InferenceResponse = None, flags: int = 0)")
        self._count_response(response, flags)
        if self._handle == STAND_IN:
            return
        last, content = "true" if flags == FLAG_FINAL else "false", "null"
        try:
            with Taken() as taken:
                if response is not None:
                    # The server may write to shared memory again before it reads what is named here.
                    content = response._json(self._channel, self._wanted, taken, {})
                self._channel.send_text(f'{{"response":{{"request":{self._handle},"last":{last},"response":{content}}}}}')
        except BaseException:
            # Nothing was sent: the model may send what went wrong.
            with self._lock:
                self._is_closed, self._count = False, self._count - 1
            raise

    def is_cancelled(self):
        """Whether nobody waits for responses any more."""
        return self._channel.call("is_cancelled", request=self._handle)["value"]

    def _count_response(self, response, flags):
        with self._lock:
            if not self._is_decoupled:
                if response is not None and self._count > 0:
                    raise TritonModelException(
                        "Unable to send response. Non-decoupled model cannot send more than one response."
                    )
                if response is None and flags == FLAG_FINAL and self._count == 0:
                    raise TritonModelException(
                        "Unable to send response. Non-decoupled model cannot send complete final before sending a "
                        "response."
                    )
            if self._is_closed:
                raise TritonModelException("Unable to send response. Response sender has been closed.")
            self._is_closed = flags == FLAG_FINAL
            self._count += 1

    def _close(self):
        """No more is sent; tells whether that was so before."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
            return was_closed

    def __del__(self):
        if not self._is_closed and self._handle != STAND_IN and not is_forked():
            try:
                self._channel.send("dropped", request=self._handle)
            except OSError:
                pass  # the server is gone


# Held while a request's sender is made.
MAKING = threading.Lock()


class InferenceRequest:
    """A request: one that the server sends, or one that a model makes for another."""

    __slots__ = ("_id", "_correlation_id", "_inputs", "_wanted", "_model_name", "_model_version", "_flags", "_timeout",
                 "_parameters", "_trace", "_origin", "_sender", "_is_answered", "_release_flags", "__weakref__")  # fmt: skip

    def __init__(self, request_id="", correlation_id=0, inputs=None, requested_output_names=None, model_name=None,
                 model_version=-1, flags=0, timeout=0, preferred_memory=None, trace=None, parameters=None):  # fmt: skip
        given = {"inputs": inputs, "requested_output_names": requested_output_names, "model_name": model_name}
        for name, value in given.items():
            if value is None:
                raise TypeError(f"an InferenceRequest has to have {name}")
        if isinstance(requested_output_names, (str, bytes)):
            raise TypeError("requested_output_names has to be a list of str")
        if correlation_id is None:
            raise TypeError("correlation_id has to be an int or a str")
        if not isinstance(correlation_id, (int, str)):
            raise TritonModelException("Correlation ID must be integer or string")
        if isinstance(correlation_id, int):
            correlation_id = whole("correlation_id", correlation_id, 64)
        request_id, model_name = text("request_id", request_id), text("model_name", model_name)
        model_version = whole("model_version", model_version, 64, is_signed=True)
        flags, timeout = whole("flags", flags, 32), whole("timeout", timeout, 64)
        self._id, self._correlation_id, self._inputs = request_id, correlation_id, list(inputs)
        self._wanted = {text("requested_output_names", name) for name in requested_output_names}
        request = f"request with id '{request_id}' and model name '{model_name}' should not be empty."
        for tensor in self._inputs:
            if tensor is None:
                raise TritonModelException(f"Input tensor for {request}")
            check_kind("inputs", tensor, Tensor)
        for name in self._wanted:
            if not name:
                raise TritonModelException(f"Requested output name for {request}")
        self._model_name, self._model_version = model_name, model_version
        self._flags, self._timeout, self._parameters = flags, timeout, parameters_json(parameters)
        if preferred_memory is not None:
            check_kind("preferred_memory", preferred_memory, PreferredMemory)
        if trace is not None:
            check_kind("trace", trace, InferenceTrace)
        self._trace = trace or InferenceTrace()
        self._origin, self._sender, self._is_answered, self._release_flags = None, None, False, RELEASE_ALL

    @classmethod
    def _received(cls, entry, channel, wholes, is_decoupled):
        # What the server sends was checked there: only requests that models make are checked here.
        request = cls.__new__(cls)
        (handle, request._id, request._model_name, request._model_version, request._correlation_id, request._flags,
         request._timeout, request._parameters, wanted, inputs, is_traced, context) = entry  # fmt: skip
        request._inputs = [Tensor._received(tensor, wholes) for tensor in inputs]
        request._wanted = wanted
        request._trace = InferenceTrace._received(handle, context) if is_traced else None
        # Most models return their responses, and never ask for the sender.
        request._origin, request._sender, request._is_answered = (channel, handle, wanted, is_decoupled), None, False
        request._release_flags = RELEASE_ALL
        return request

    def inputs(self):
        """The input tensors."""
        return self._inputs

    def request_id(self):
        """The client's identifier, or an empty text."""
        return self._id

    def correlation_id(self):
        """The sequence, a number or a text."""
        return self._correlation_id

    def requested_output_names(self):
        """The outputs that the client wants."""
        return set(self._wanted)

    def model_name(self):
        """The model that the request is for."""
        return self._model_name

    def flags(self):
        """Start and end of a sequence."""
        return self._flags

    def set_flags(self, flags):
        """Sets start and end of a sequence."""
        self._flags = whole("flags", flags, 32)

    def timeout(self):
        """How long it may wait, in microseconds."""
        return self._timeout

    def parameters(self):
        """The parameters, as JSON."""
        return self._parameters

    def trace(self):
        """The trace that the request belongs to."""
        if self._trace is None:
            self._trace = InferenceTrace()
        return self._trace

    def get_response_sender(self):
        """What answers the request."""
        if self._origin is None:
            raise TritonModelException("Only requests that the server sent have a response sender.")
        if self._sender is None:
            # There is one for all threads: one that is dropped tells the server that nobody will answer.
            with MAKING:
                if self._sender is None:
                    sender = InferenceResponseSender(*self._origin)
                    sender._is_closed = self._is_answered
                    self._sender = sender
        return self._sender

    def _is_stand_in(self):
        """Whether it fills the row of a sequence that has no request now, and nobody waits for the response."""
        return self._origin[1] == STAND_IN

    def _count_returned(self, response):
        """The response that `execute` returned is the only one."""
        if self._sender is None:
            self._is_answered = True
        else:
            self._sender._count_response(response, FLAG_FINAL)

    def is_cancelled(self):
        """Whether nobody waits for the answer any more."""
        return self.get_response_sender().is_cancelled() if self._origin else False

    def set_release_flags(self, flags):
        """What becomes of the request after `execute`: it is released, or runs again as the next of its sequence."""
        self._release_flags = flags
        InferenceRequest._are_released = True

    def _runs_again(self):
        """Whether the request goes back to the server, which takes its sender; not after the last response."""
        return self._release_flags == RELEASE_RESCHEDULE and not self.get_response_sender()._close()

    def exec(self, decoupled=False):
        """Runs the request on another model: its response, or all of a decoupled model's, as they come."""
        responses = self._run(decoupled)
        # The first has come when this returns: who awaits it does not hold others up.
        responses.fetch()
        return responses if decoupled else list(responses)[0]

    def async_exec(self, decoupled=False):
        """The same, to be awaited."""
        return asyncio.get_running_loop().run_in_executor(None, self.exec, decoupled)

    def _run(self, decoupled):
        channel = other_models()
        with Taken() as taken:
            request = {
                "id": self._id, "correlation_id": self._correlation_id, "model": self._model_name,
                "version": self._model_version, "flags": self._flags, "timeout": self._timeout,
                "parameters": self._parameters, "outputs": sorted(self._wanted),
                "inputs": store(self._inputs, channel, taken), "trace": self.trace()._origin,
            }  # fmt: skip
            return ResponseIterator(channel, channel.open("infer", request=request, decoupled=decoupled))

    # The way to other models, once the model is initialized.
    _models = None
    # Whether the model has set what becomes of a request.
    _are_released = False


def other_models():
    """The way to other models."""
    if InferenceRequest._models is None:
        raise TritonModelException("BLS is only supported during the 'execute' function.")
    return InferenceRequest._models


class ResponseIterator:
    """The responses of another model. Whoever has gone through all of them begins again; before, a loop goes on."""

    def __init__(self, channel, call):
        self._channel, self._call, self._known, self._place = channel, call, [], 0

    def __iter__(self):
        if self._call.is_over and self._place == len(self._known):
            self._place = 0
        return self

    def __next__(self):
        if self._place == len(self._known) and not self.fetch():
            raise StopIteration
        self._place += 1
        return self._known[self._place - 1]

    def fetch(self):
        """Waits for the next response; false where none follows."""
        if self._call.is_over:
            return False
        try:
            self._known.append(InferenceResponse._received(self._call.next(), self._channel))
        except CallFailed as error:
            self._known.append(InferenceResponse(error=TritonError(str(error))))
        return True

    def cancel(self):
        """Asks the other model to stop; what it answers until then still comes."""
        if not self._call.is_over:
            self._channel.send("cancel", call=self._call.number)
