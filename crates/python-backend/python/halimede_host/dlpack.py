"""DLPack capsules over memory of this process.

numpy knows neither bfloat16 nor, in some versions, truth values; what it does not is done with the interpreter's C
interface."""

import ctypes
import weakref

import numpy as np

CPU = 1

# Datatype number to (kind, bits) of DLPack; kinds: 0 signed, 1 unsigned, 2 float, 4 bfloat, 6 bool.
KINDS = {
    1: (6, 8), 2: (1, 8), 3: (1, 16), 4: (1, 32), 5: (1, 64), 6: (0, 8), 7: (0, 16), 8: (0, 32), 9: (0, 64),
    10: (2, 16), 11: (2, 32), 12: (2, 64), 14: (4, 16),
}  # fmt: skip
NUMBERS = {kind: number for number, kind in KINDS.items()}


NOT_CONTIGUOUS = (
    "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."
)


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class DLManagedTensor(ctypes.Structure):
    pass


Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(DLManagedTensor))
DLManagedTensor._fields_ = [("dl_tensor", DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", Deleter)]


def _function(name, result, *arguments):
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_is_valid = _function("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_pointer = _function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_rename = _function("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
# A capsule keeps the address of its name. Who takes over what it holds gives it the second one.
FRESH, USED = b"dltensor", b"used_dltensor"

# What numpy lends of each size. Others get their datatype afterwards.
INTEGERS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


class Lent(np.ndarray):
    """An array that keeps the tensor whose bytes it shows."""

    owner = None


def is_capsule(value):
    """Whether `value` is a capsule of a tensor that nobody took over."""
    return type(value).__name__ == "PyCapsule" and _is_valid(value, FRESH) == 1


def capsule(raw, dtype, shape, owner):
    """A capsule that shares the bytes of the array `raw`, and keeps `owner`.

    It is numpy's: what frees it is called by others at any moment, also while an exception is on its way, where no
    function of Python may run."""
    code, bits = KINDS[dtype]
    lent = (raw if raw.flags.writeable else raw.copy()).view(INTEGERS[bits]).reshape(shape).view(Lent)
    lent.owner = owner
    value = lent.__dlpack__()
    DLManagedTensor.from_address(_pointer(value, FRESH)).dl_tensor.code = code
    return value


def read(value):
    """The bytes of a capsule as an array that shares them, the datatype's number and the shape."""
    address = _pointer(value, FRESH)
    managed = DLManagedTensor.from_address(address)
    tensor = managed.dl_tensor
    if tensor.device_type != CPU:
        raise ValueError(f"DLDevice type {tensor.device_type} is not support by Python backend.")
    dtype = NUMBERS.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise ValueError(f"DLPack datatype ({tensor.code}, {tensor.bits}, {tensor.lanes}) is not supported.")
    shape = [tensor.shape[i] for i in range(tensor.ndim)]
    check_contiguous(tensor, shape)
    size = tensor.bits // 8
    for length in shape:
        size *= length
    if size == 0:
        raw = np.empty(0, np.uint8)
    else:
        raw = np.frombuffer((ctypes.c_uint8 * size).from_address(tensor.data + tensor.byte_offset), np.uint8)
    _rename(value, USED)
    # The capsule's owner hears that the memory is free when the array and all its views are gone.
    if managed.deleter:
        weakref.finalize(raw, managed.deleter, ctypes.pointer(managed)).atexit = False
    return raw, dtype, shape


def check_contiguous(tensor, shape):
    if not tensor.strides:
        return
    expected = 1
    for i in reversed(range(tensor.ndim)):
        if shape[i] != 1 and tensor.strides[i] != expected and 0 not in shape:
            raise ValueError(NOT_CONTIGUOUS)
        expected *= shape[i]
