"""Tensors, their datatypes, and their way into and out of shared memory."""

import functools
import struct

import numpy as np

from . import dlpack
from .arguments import text
from .channel import ALIGNMENT, CallFailed, aligned, quoted


class TritonModelException(Exception):
    """What the functions of `triton_python_backend_utils` raise."""


def failed(failure, channel, reason):
    """The exception where the server cannot do what a model asked for, in Triton's words."""
    return TritonModelException(f"{failure}: Failed to process the request for model '{channel.instance}', message: {reason}")


# The numbers of datatypes in the protocol.
NUMPY_TYPES = {
    1: np.bool_, 2: np.uint8, 3: np.uint16, 4: np.uint32, 5: np.uint64, 6: np.int8, 7: np.int16, 8: np.int32,
    9: np.int64, 10: np.float16, 11: np.float32, 12: np.float64, 13: np.object_,
}  # fmt: skip
BYTES, BF16 = 13, 14
DTYPES = {number: np.dtype(kind) for number, kind in NUMPY_TYPES.items()}
NUMBERS = {np.dtype(kind): number for number, kind in NUMPY_TYPES.items()}

STRING_LENGTH = struct.Struct("<I")


def triton_to_numpy_type(data_type):
    """The numpy type of a datatype's number; None for one that numpy does not have."""
    return NUMPY_TYPES.get(data_type)


def numpy_to_triton_type(data_type):
    """The number of a numpy type's datatype; None for one that the protocol does not have."""
    data_type = np.dtype(data_type)
    return BYTES if data_type.kind == "S" else NUMBERS.get(data_type)


def serialize_byte_tensor(input_tensor):
    """The strings of an array in order, each behind its length in four bytes, little end first."""
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype != np.object_ and input_tensor.dtype.kind != "S":
        return None
    parts = []
    for item in input_tensor.ravel(order="C").tolist():
        text = item if isinstance(item, bytes) else str(item).encode("utf-8")
        parts.append(STRING_LENGTH.pack(len(text)))
        parts.append(text)
    return b"".join(parts)


def deserialize_bytes_tensor(encoded_tensor):
    """The opposite of `serialize_byte_tensor`: an array of bytes objects with one dimension."""
    data, texts, offset = bytes(encoded_tensor), [], 0
    while offset < len(data):
        if offset + STRING_LENGTH.size > len(data):
            raise TritonModelException("Invalid bytes tensor data: incomplete length field")
        start = offset + STRING_LENGTH.size
        offset = start + STRING_LENGTH.unpack_from(data, offset)[0]
        if offset > len(data):
            raise TritonModelException("Invalid bytes tensor data: string extends beyond buffer")
        texts.append(data[start:offset])
    array = np.empty(len(texts), np.object_)
    array[:] = texts
    return array


class Tensor:
    """A named tensor."""

    __slots__ = ("_name", "_dtype", "_shape", "_array", "_raw", "_place", "_whole")

    def __init__(self, name, numpy_array):
        if not isinstance(name, (str, bytes)) or not isinstance(numpy_array, np.ndarray):
            raise TypeError("Tensor(name: str, numpy_array: numpy.ndarray)")
        dtype = NUMBERS.get(numpy_array.dtype) or numpy_to_triton_type(numpy_array.dtype)
        if dtype is None:
            raise TritonModelException("NumPy dtype is not supported.")
        # As in Triton, strings and what lies scattered are taken as they are now; other arrays are shared with the model.
        raw, shape = None, numpy_array.shape
        if dtype == BYTES:
            raw = np.frombuffer(bytearray(serialize_byte_tensor(numpy_array)), np.uint8)
        elif not numpy_array.flags.c_contiguous:
            numpy_array = np.ascontiguousarray(numpy_array).reshape(shape)
        self._set(name if type(name) is str else text("name", name), dtype, shape, numpy_array, raw)

    def _set(self, name, dtype, shape, array, raw):
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        # `array`: the elements. `raw`: the bytes as they travel, an array that owns or borrows them. `whole`: the segment that
        # they lie in already, and `place` where there. At least one of the three is there. `shape`: a tuple, or a list.
        self._name, self._dtype, self._shape = name, dtype, shape
        self._array, self._raw, self._place, self._whole = array, raw, None, None

    @classmethod
    def _from_raw(cls, name, dtype, shape, raw):
        tensor = cls.__new__(cls)
        tensor._set(name, dtype, shape, None, raw)
        return tensor

    @classmethod
    def _received(cls, entry, wholes):
        """A tensor that lies in shared memory."""
        name, dtype, shape, segment, offset, size = entry
        if size == 0:
            return cls._from_raw(name, dtype, shape, np.empty(0, np.uint8))
        # Every request has some: without a call.
        tensor = cls.__new__(cls)
        tensor._name, tensor._dtype, tensor._shape, tensor._array, tensor._raw = name, dtype, shape, None, None
        tensor._place, tensor._whole = (segment, offset, size), wholes[segment]
        return tensor

    def name(self):
        """The name."""
        return self._name

    def as_numpy(self):
        """The elements; of a received tensor, a view of the memory that it came in."""
        if self._array is None:
            if self._dtype == BF16:
                raise TritonModelException(
                    "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
                )
            if self._dtype == BYTES:
                self._array = deserialize_bytes_tensor(self._content()).reshape(self._shape)
            elif self._whole is not None:
                self._array = np.ndarray(self._shape, DTYPES[self._dtype], self._whole, self._place[1])
            else:
                self._array = self._raw.view(DTYPES[self._dtype]).reshape(self._shape)
        return self._array

    def triton_dtype(self):
        """The number of the datatype."""
        return self._dtype

    def shape(self):
        """The dimensions."""
        return list(self._shape)

    def is_cpu(self):
        """Always: there is no other memory."""
        return True

    def to_dlpack(self):
        """A DLPack capsule of the elements, which are not copied."""
        if self._dtype == BYTES:
            raise TritonModelException("DLPack does not have support for string tensors.")
        raw = self._content()
        if raw is self._array:
            raw = np.ascontiguousarray(raw).reshape(-1).view(np.uint8)
        return dlpack.capsule(raw, self._dtype, self._shape, self)

    def __dlpack__(self, *, stream=None, **_):
        if stream is not None:
            raise TritonModelException(
                "Tensor is stored in CPU memory, therefore the 'stream' argument of __dlpack__ has to be None."
            )
        return self.to_dlpack()

    def __dlpack_device__(self):
        return (dlpack.CPU, 0)

    @classmethod
    def from_dlpack(cls, name, tensor):
        """A tensor that shares the memory of `tensor`, a DLPack capsule or what can give one."""
        name = text("name", name)
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        if isinstance(tensor, np.ndarray):
            # numpy itself does not lend arrays that are read-only.
            if not tensor.flags.c_contiguous:
                raise TritonModelException(dlpack.NOT_CONTIGUOUS)
            return cls(name, tensor)
        if not dlpack.is_capsule(tensor):
            if not hasattr(tensor, "__dlpack__") or not hasattr(tensor, "__dlpack_device__"):
                raise TritonModelException(
                    "Provided tensor is not supported. Tensor must be a DLPack capsule or have `__dlpack__` and "
                    "`__dlpack_device__` attributes"
                )
            device, _ = tensor.__dlpack_device__()
            if device != dlpack.CPU:
                raise TritonModelException(f"DLDevice type {int(device)} is not support by Python backend.")
            tensor = tensor.__dlpack__()
        try:
            raw, dtype, shape = dlpack.read(tensor)
        except ValueError as error:
            raise TritonModelException(str(error)) from None
        return cls._from_raw(name, dtype, shape, raw)

    def _content(self):
        """What is to be sent: an array, or bytes."""
        if self._raw is not None:
            return self._raw
        if self._whole is None:
            return self._array
        _, offset, size = self._place
        return self._whole[offset : offset + size]


class Taken(list):
    """The segments that a message speaks of. They are given back where the message is not sent."""

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            for segment in self:
                segment.release()


# The place of a tensor without bytes.
NOWHERE = (0, 0, 0)


# What lies in inputs and has no more bytes is copied. Behind a batch of no more than that the next one may lie in the socket already, and
# begins before the server has read the answers of this one: what a model has kept of its inputs, and writes to then, must not be among
# them. The server's own number is `LED_BYTES_MAX` (crates/serving/src/backend.rs); a test compares them.
LED_BYTES_MAX = 256 << 10


def inside(content, kept):
    """Where an array lies that is a view of one of the segments that are `kept`; None for any other one."""
    base = content.base
    if base is None or not content.flags.c_contiguous:
        return None
    for number, whole in kept.items():
        if base is whole:
            offset = content.ctypes.data - whole.ctypes.data
            # A model may make views that end elsewhere.
            return (number, offset, content.nbytes) if 0 < offset <= whole.nbytes - content.nbytes else None
    return None


def placed(tensors, channel, taken, kept):
    """Puts tensors into shared memory, and tells for each the number of a segment, offset and length; the segment that this takes is
    `taken`. What lies there already, in one of the segments that are `kept`, which are arrays by their numbers, is not copied, also
    where it is a view that the model made: the server does not write there before it has read it."""
    places, contents, end = [], [], ALIGNMENT
    for tensor in tensors:
        place = tensor._place
        # The array, not the number alone: a copy of a tensor does not lie there.
        if place is None or place[2] <= LED_BYTES_MAX or kept.get(place[0]) is not tensor._whole:
            content = tensor._content()
            size = content.nbytes
            place = inside(content, kept) if size > LED_BYTES_MAX else None
            if place is None:
                place = NOWHERE
                if size > 0:
                    contents.append((len(places), content, end, size))
                    end = aligned(end + size)
        places.append(place)
    if contents:
        try:
            segment = channel.output_segment(end - ALIGNMENT)
        except CallFailed as error:
            raise TritonModelException(str(error)) from None
        taken.append(segment)
        for index, content, offset, size in contents:
            if content.flags.c_contiguous:
                segment.bytes[offset : offset + size] = content
            else:
                np.ndarray(content.shape, content.dtype, segment.bytes, offset)[...] = content
            places[index] = segment.number, offset, size
    return places


def store(tensors, channel, taken):
    """Puts tensors into shared memory and tells of them as the server reads it."""
    places = placed(tensors, channel, taken, {})
    return [[tensor._name, tensor._dtype, tensor._shape, *place] for tensor, place in zip(tensors, places)]


def stored_json(tensors, channel, taken, kept):
    """The same as JSON, faster than an encoder that takes anything; see `placed` for `kept`."""
    places = placed(tensors, channel, taken, kept)
    return ",".join([
        "[%s,%s,%d,%d,%d]" % (quoted(tensor._name), kind_json(tensor._dtype, *tensor._shape), *place)
        for tensor, place in zip(tensors, places)
    ])  # fmt: skip


@functools.lru_cache(maxsize=256)
def kind_json(dtype, *shape):
    """Datatype and shape as JSON: responses have few kinds of tensors."""
    return f"{dtype},{list(shape)}"
