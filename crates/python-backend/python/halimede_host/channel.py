"""The way to the server: messages over a socket, tensors in shared memory (docs/components/python-backend.md)."""

import collections
import contextlib
import errno
import gc
import itertools
import json
import mmap
import os
import socket
import struct
import sys
import threading
import types
import weakref
from json.encoder import encode_basestring as quoted  # noqa: F401  for messages that are put together by hand

import numpy as np

LENGTH = struct.Struct("<I")
LENGTH_BYTES = LENGTH.size
# The bit of a message's length that says that bytes of tensors lie in it, and the number by which tensors name those.
WITH_BYTES = 1 << 31
IN_MESSAGE = 0
# Made once: `json.dumps` with other separators than its own makes one for each message.
JSON = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
# The value that a text begins with, and where it ends: what the server sends has nothing around it.
parse = json.JSONDecoder().raw_decode

# Bytes that are read of the socket at a time.
CHUNK = 1 << 16
# What comes beside some: a descriptor. It is not for programs that the model starts; macOS has no such flag.
BESIDE = socket.CMSG_SPACE(struct.calcsize("i"))
NOT_INHERITED = getattr(socket, "MSG_CMSG_CLOEXEC", 0)

# The longest message that the server reads.
MESSAGE_BYTES_MAX = 64 << 20

# A segment begins with a byte that says whether somebody uses it; tensors lie behind so many bytes, and at
# multiples of them.
ALIGNMENT = 64
FREE, IN_USE = 0, 1
# Free segments that are kept for what comes, however few are in use, and while nothing comes.
FREE_MAX = 32
IDLE_FREE_MAX = 4


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


# Whether this is a process that a model forked: memory and messages are its parent's.
_is_forked = False


def note_fork():
    """From now on this is a process that a model forked."""
    global _is_forked
    _is_forked = True


def is_forked():
    """Whether this is a process that a model forked."""
    return _is_forked


class ServerGone(Exception):
    """The server closed its end."""


class CallFailed(Exception):
    """The server answered a call with an error."""


class MessageTooLong(ValueError):
    """A message was not sent: the server would not read it."""

    def __init__(self, length):
        super().__init__(
            f"a message of {length} bytes is longer than the {MESSAGE_BYTES_MAX} that the server reads: there are too many tensors, "
            "or names, parameters or errors that are too long"
        )


def aligned(offset):
    """The next place where a tensor may begin."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def parse_with_bytes(body):
    """A message, an answer, that bytes of tensors come with."""
    end = LENGTH_BYTES + LENGTH.unpack_from(body)[0]
    message = parse(body[LENGTH_BYTES:end].decode())[0]
    # A copy, which the model may write to.
    message["response"]["bytes"] = bytearray(body[end:])
    return message


def descriptor_and(connection, size):
    """The descriptor that comes with the next byte of a socket, None for one that this process may not open, and so many bytes."""
    data, beside, _, _ = connection.recvmsg(size, BESIDE, NOT_INHERITED)
    if len(data) < size:
        # So few come at once or not at all.
        raise ServerGone
    return struct.unpack("i", beside[0][2])[0] if beside else None, data


@contextlib.contextmanager
def not_collecting():
    """Nothing is collected as garbage meanwhile: it might ask the server something, in the middle of this."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def references(owner):
    """How many references there are to the array of its owner, with the one that looking makes."""
    return sys.getrefcount(owner.array)


# How many there are where nobody has the array but its owner.
UNUSED = references(types.SimpleNamespace(array=np.ndarray((1,), np.uint8)))


class Segment:
    """A shared-memory object of the server, mapped as long as this process lives."""

    def __init__(self, number, capacity, descriptor):
        self.number, self.capacity = number, capacity
        if descriptor is None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        try:
            self.bytes = mmap.mmap(descriptor, capacity)
        finally:
            os.close(descriptor)
        # All bytes, which tensors are views of; None where nobody asked for them.
        self.array = None
        self.watch = None

    def is_free(self):
        return self.bytes[0] == FREE

    def use(self):
        self.bytes[0] = IN_USE

    def release(self, *_):
        self.watch = None
        # A copy of an array that is collected in a process that was forked says nothing of the parent's.
        if not _is_forked:
            self.bytes[0] = FREE

    def whole(self):
        """All bytes as an array. The segment is free once `give_back` was called and nobody else has the array or a view of it."""
        if self.array is None:
            self.array = np.ndarray((self.capacity,), np.uint8, buffer=self.bytes)
        return self.array

    def give_back(self):
        """Whoever asked for the array needs it no more. Where nobody else has it either it serves again; it is not watched before
        somebody has it, since that costs more."""
        if self.array is None or references(self) == UNUSED:
            self.release()
        else:
            self.watch = weakref.ref(self.array, self.release)
            self.array = None


class Channel:
    """Sends and receives messages, from any thread.

    Whoever waits for a message reads the socket, one thread at a time, and hands what is for others to them."""

    def __init__(self, descriptor):
        self.socket = socket.socket(fileno=descriptor)
        # The name of the model's instance; empty before it is initialized.
        self.instance = ""
        self.process = os.getpid()
        # What is collected as garbage while its thread sends may send too: between messages, not inside.
        self.sending = threading.RLock()
        self.unread = b""
        # Over which memory comes, and what has come of segments that were not asked for yet, by their numbers.
        self.memory_socket = socket.socket(fileno=descriptor_and(self.socket, 1)[0])
        self.descriptors = {}
        # Held by the one who reads; the others wait until something has changed.
        self.reading = threading.Lock()
        self.reader = None
        self.changed = threading.Condition()
        self.waiting = 0
        self.is_gone = False
        self.tasks = collections.deque()
        self.calls = itertools.count(1)
        # Answers to calls that somebody waits for.
        self.answers = {}
        self.segments = {}
        self.output_segments = []
        self.memory = threading.RLock()

    # Messages.

    def send(self, kind, /, **fields):
        """Sends a message of a kind."""
        self.send_text(JSON.encode({kind: fields}))

    def send_text(self, text):
        """Sends a message that is text already, or nothing where it is too long. Halves of characters, which names of files may
        have, become `?`."""
        data = text.encode("utf-8", "replace")
        if len(data) > MESSAGE_BYTES_MAX:
            raise MessageTooLong(len(data))
        with self.sending:
            self.socket.sendall(LENGTH.pack(len(data)) + data)

    def next_task(self):
        """Waits for something to do; for the main thread."""
        if not self.tasks:
            self._wait(self.tasks)
        return self.tasks.popleft()

    def call(self, what, **arguments):
        """Asks the server and waits for its answer."""
        return self.open(what, **arguments).next()

    def open(self, what, **arguments):
        """Asks the server something that it may answer several times."""
        if os.getpid() != self.process:
            # The answer would come to this one's parent.
            raise RuntimeError("a process that a model forks cannot call other models or the server: use threads for that")
        call = Call(self, next(self.calls))
        self.answers[call.number] = call.answers
        self.send("call", call=call.number, what=what, **arguments)
        return call

    def _wait(self, messages):
        """Waits until there is one of these."""
        while not messages:
            if self.is_gone:
                raise ServerGone
            if self.reading.acquire(False):
                self.reader = threading.get_ident()
                try:
                    self._read_until(messages)
                finally:
                    self.reader = None
                    self.reading.release()
                    if self.waiting:
                        self._tell()
            elif self.reader == threading.get_ident():
                # What is collected as garbage while a message is put together, or a handler of a signal, asks something: nobody
                # else would read the answer.
                self._read_until(messages)
            else:
                with self.changed:
                    # First counted, then looked: who reads looks the other way round.
                    self.waiting += 1
                    while not messages and not self.is_gone and self.reading.locked():
                        self.changed.wait()
                    self.waiting -= 1

    def _tell(self):
        """Something has changed for those who wait; where nobody does, this need not be called."""
        with self.changed:
            self.changed.notify_all()

    def _read_until(self, messages):
        while not messages and not self.is_gone:
            message = self._read()
            if message is None:
                self.is_gone = True
            elif "call" in message:
                self._take_answer(message)
            elif "gone" in message:
                self._forget(message["gone"])
            else:
                self.tasks.append(message)
            if self.waiting:
                self._tell()

    def _take_answer(self, message):
        answers = self.answers.get(message["call"])
        if answers is None:
            return self._discard(message)
        answers.append(message)
        if message["call"] not in self.answers:
            # Whoever waited has gone meanwhile.
            self._discard_all(answers)

    def abandon(self, call, answers):
        """Nobody takes the answers to a call any more, of which these have come."""
        self.answers.pop(call, None)
        self._discard_all(answers)

    def _discard_all(self, answers):
        # Another thread may do the same.
        with contextlib.suppress(IndexError):
            while True:
                self._discard(answers.popleft())

    def _discard(self, answer):
        """Frees what an answer lies in."""
        response = answer.get("response")
        if response is not None and "uses" in response:
            try:
                self.leases(response)
            finally:
                self.give_back(response)

    def _read(self):
        """The next message; None at the end."""
        while True:
            # Another message may have been read here meanwhile (`_wait`).
            data = self.unread
            if len(data) >= LENGTH_BYTES:
                length = LENGTH.unpack_from(data)[0]
                end = LENGTH_BYTES + (length & ~WITH_BYTES)
                if len(data) >= end:
                    self.unread = data[end:]
                    if length >= WITH_BYTES:
                        return parse_with_bytes(data[LENGTH_BYTES:end])
                    # Of bytes, its encoding would be looked for first.
                    return parse(data[LENGTH_BYTES:end].decode())[0]
                if end > CHUNK:
                    with not_collecting():
                        return self._read_long(data, end, length >= WITH_BYTES)
            try:
                more = self.socket.recv(CHUNK)
            except OSError:
                return None
            if not more:
                return None
            self.unread = self.unread + more if self.unread else more

    def _read_long(self, begun, end, has_bytes):
        """A message of so many bytes that has begun."""
        try:
            whole = bytearray(end)
            whole[: len(begun)] = begun
            rest = memoryview(whole)[len(begun) :]
            while rest:
                count = self.socket.recv_into(rest)
                if not count:
                    return None
                rest = rest[count:]
            self.unread = b""
            body = whole[LENGTH_BYTES:]
            return parse_with_bytes(body) if has_bytes else parse(body.decode())[0]
        except OSError:
            return None

    def _descriptor(self, number):
        """Waits for the descriptor of a segment, which is sent before the message that speaks of it. It is the caller's."""
        with self.memory, not_collecting():
            while number not in self.descriptors:
                descriptor, which = descriptor_and(self.memory_socket, LENGTH_BYTES)
                self.descriptors[LENGTH.unpack(which)[0]] = descriptor
            return self.descriptors.pop(number)

    def wait_answer(self, answers):
        """The next of the answers to a call."""
        self._wait(answers)
        return answers.popleft()

    # Memory.

    def map_segment(self, number, capacity):
        try:
            self.segments[number] = Segment(number, capacity, self._descriptor(number))
        except OSError:
            # Nobody could say that it is free.
            self.send("forget_segments", numbers=[number])
            raise
        return self.segments[number]

    def leases(self, message):
        """The segments that a message speaks of, each as an array; a new one is mapped, old ones let go. To be given back."""
        for number in message["dropped"]:
            self.segments.pop(number, None)
        if message["new"] is not None:
            self.map_segment(*message["new"])
        return {number: self.segments[number].whole() for number in message["uses"]}

    def _forget(self, numbers):
        """These segments are no more."""
        for number in numbers:
            self.segments.pop(number, None)

    def give_back(self, message):
        """The segments that a message spoke of serve again, each as soon as no tensor lies in it."""
        for number in message["uses"]:
            # One that could not be mapped is not there.
            if number in self.segments:
                self.segments[number].give_back()

    def output_segment(self, size):
        """A free segment of at least so many bytes, taken."""
        needed = size + ALIGNMENT
        with self.memory:
            found, free = None, []
            for one in self.output_segments:
                # Without a call: every response takes one.
                if one.bytes[0] == FREE:
                    free.append(one)
                    if one.capacity >= needed and (found is None or one.capacity < found.capacity):
                        found = one
            gone = []
            if found is None:
                # What is free is too small: the new one serves in its place.
                gone = free
            else:
                found.use()
                if len(free) > FREE_MAX and len(free) > len(self.output_segments) // 2:
                    # Each is a file of two processes.
                    gone = [one for one in free[len(free) // 2 :] if one is not found]
            if gone:
                gone = self._without(gone)
        if gone:
            self._let_go(gone)
        if found is not None:
            return found
        segment = self.map_segment(*self.call("segment", bytes=size)["segment"])
        segment.use()
        with self.memory:
            self.output_segments.append(segment)
        return segment

    def tidy(self):
        """Lets go of segments for outputs that are free, but for a few: nothing has come for a while."""
        # Whoever is collected as garbage might take one of them.
        with self.memory, not_collecting():
            gone = self._without([one for one in self.output_segments if one.is_free()][IDLE_FREE_MAX:])
        if gone:
            self._let_go(gone)

    def _without(self, gone):
        """Takes these out of the segments for outputs. Returns their numbers."""
        numbers = {one.number for one in gone}
        self.output_segments = [one for one in self.output_segments if one.number not in numbers]
        return numbers

    def _let_go(self, numbers):
        """The server needs these segments no more."""
        self._forget(numbers)
        self.send("forget_segments", numbers=list(numbers))


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

    def __del__(self):
        # What is collected in a process that was forked is still its parent's.
        if not self.is_over and not _is_forked:
            self.channel.abandon(self.number, self.answers)
