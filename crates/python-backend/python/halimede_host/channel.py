"""The way to the server: messages over a socket, tensors in shared memory (docs/components/python-backend.md)."""

import collections
import itertools
import json
import mmap
import os
import socket
import struct
import threading
import weakref

import numpy as np

LENGTH = struct.Struct("<I")
# Made once: `json.dumps` with other separators than its own makes one for each message.
JSON = json.JSONEncoder(separators=(",", ":"))

# A segment begins with a byte that says whether somebody uses it; tensors lie behind so many bytes, and at
# multiples of them.
ALIGNMENT = 64
FREE, IN_USE = 0, 1


# The way to the server that this process works for.
_server = None


def connect(channel):
    """From now on this process works for the server at the other end."""
    global _server
    _server = channel


def is_connected():
    """Whether there is a server."""
    return _server is not None


def server():
    """The way to the server."""
    if _server is None:
        raise RuntimeError("there is no server: this works inside a model that a server runs")
    return _server


class ServerGone(Exception):
    """The server closed its end."""


class CallFailed(Exception):
    """The server answered a call with an error."""


def aligned(offset):
    """The next place where a tensor may begin."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def open_shared_memory(key):
    try:
        from _posixshmem import shm_open
    except ImportError:
        return os.open("/dev/shm" + key, os.O_RDWR)
    return shm_open(key, os.O_RDWR, mode=0o600)


class Segment:
    """A shared-memory object of the server, mapped as long as this process lives."""

    def __init__(self, number, key, capacity):
        self.number, self.capacity = number, capacity
        descriptor = open_shared_memory(key)
        try:
            self.bytes = mmap.mmap(descriptor, capacity)
        finally:
            os.close(descriptor)
        self.lease = None

    def is_free(self):
        return self.bytes[0] == FREE

    def use(self):
        self.bytes[0] = IN_USE

    def release(self, *_):
        self.lease = None
        self.bytes[0] = FREE

    def whole(self):
        """All bytes as an array. When it is gone, and every view of it, the segment is free."""
        whole = np.ndarray((self.capacity,), np.uint8, buffer=self.bytes)
        self.lease = weakref.ref(whole, self.release)
        return whole


class Channel:
    """Sends and receives messages, from any thread.

    Whoever waits for a message reads the socket, one thread at a time, and hands what is for others to them."""

    def __init__(self, descriptor):
        self.socket = socket.socket(fileno=descriptor)
        # What is collected as garbage while its thread sends may send too: between messages, not inside.
        self.sending = threading.RLock()
        self.unread = bytearray()
        self.changed = threading.Condition()
        self.is_reading = False
        self.is_gone = False
        self.tasks = collections.deque()
        self.calls = itertools.count(1)
        # Answers to calls that somebody waits for.
        self.answers = {}
        self.segments = {}
        self.output_segments = []

    # Messages.

    def send(self, message):
        text = JSON.encode(message).encode()
        with self.sending:
            self.socket.sendall(LENGTH.pack(len(text)) + text)

    def next_task(self):
        """Waits for something to do; for the main thread."""
        self._wait(lambda: self.tasks)
        return self.tasks.popleft()

    def call(self, what, **arguments):
        """Asks the server and waits for its answer."""
        return self.open(what, **arguments).next()

    def open(self, what, **arguments):
        """Asks the server something that it may answer several times."""
        call = Call(self, next(self.calls))
        self.answers[call.number] = call.answers
        self.send({"is": "call", "call": call.number, "what": what, **arguments})
        return call

    def _wait(self, is_there):
        while True:
            with self.changed:
                while not is_there() and self.is_reading and not self.is_gone:
                    self.changed.wait()
                if is_there():
                    return
                if self.is_gone:
                    raise ServerGone
                self.is_reading = True
            message = None
            try:
                message = self._read()
            finally:
                with self.changed:
                    self.is_reading = False
                    if message is None:
                        self.is_gone = True
                    elif "call" in message:
                        # Nobody may wait any more.
                        self.answers.get(message["call"], collections.deque()).append(message)
                    else:
                        self.tasks.append(message)
                    self.changed.notify_all()

    def _read(self):
        """The next message; None at the end."""
        while True:
            if len(self.unread) >= LENGTH.size:
                end = LENGTH.size + LENGTH.unpack_from(self.unread)[0]
                if len(self.unread) >= end:
                    # A text: of bytes, `json.loads` would look for their encoding first.
                    message = json.loads(self.unread[LENGTH.size : end].decode())
                    del self.unread[:end]
                    return message
            try:
                data = self.socket.recv(1 << 16)
            except OSError:
                return None
            if not data:
                return None
            self.unread += data

    def wait_answer(self, answers):
        """The next of the answers to a call."""
        self._wait(lambda: answers)
        return answers.popleft()

    # Memory.

    def map_segment(self, number, key, capacity):
        self.segments[number] = Segment(number, key, capacity)
        return self.segments[number]

    def leases(self, message):
        """The segments that a message speaks of, each as an array; new ones are mapped, old ones let go."""
        for number in message["dropped"]:
            self.segments.pop(number, None)
        for segment in message["segments"]:
            self.map_segment(*segment)
        return {number: self.segments[number].whole() for number in message["uses"]}

    def output_segment(self, size):
        """A free segment of at least so many bytes, taken."""
        needed = size + ALIGNMENT
        with self.changed:
            fitting = [one for one in self.output_segments if one.capacity >= needed and one.is_free()]
            if fitting:
                found = min(fitting, key=lambda one: one.capacity)
                found.use()
                return found
            # What is free is too small: the new one serves in its place.
            dropped = [one for one in self.output_segments if one.is_free()]
            self.output_segments = [one for one in self.output_segments if one not in dropped]
        for one in dropped:
            self.segments.pop(one.number, None)
        answer = self.call("segment", bytes=size, dropped=[one.number for one in dropped])
        segment = self.map_segment(*answer["segment"])
        segment.use()
        with self.changed:
            self.output_segments.append(segment)
        return segment


class Call:
    """A question to the server whose answers may still come."""

    def __init__(self, channel, number):
        self.channel, self.number = channel, number
        self.answers = collections.deque()
        self.is_over = False

    def next(self):
        """Waits for the next answer."""
        answer = self.channel.wait_answer(self.answers)
        self.is_over = answer.get("last", True) or answer.get("error") is not None
        if self.is_over:
            del self.channel.answers[self.number]
        if answer.get("error") is not None:
            raise CallFailed(answer["error"])
        return answer
