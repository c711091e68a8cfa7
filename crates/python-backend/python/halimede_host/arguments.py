"""Checks of what models call functions with: a wrong argument is the model's mistake, and told where it is made.

As in Triton, bytes are taken for text, and whatever counts as a whole number for one."""

import operator

# Longer texts would be longer than a message may be.
TEXT_MAX = 1 << 20


def text(name, value):
    """The text that is given; refuses what is none."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if not isinstance(value, str):
        raise TypeError(f"{name} has to be a str, found type {type(value)}")
    return str(value)


def shortened(value):
    """What there is room for of a text that people read."""
    return value if len(value) <= TEXT_MAX else value[:TEXT_MAX] + " ..."


def whole(name, value, bits, is_signed=False):
    """The whole number of so many bits that is given; refuses what is none."""
    low = -(1 << (bits - 1)) if is_signed else 0
    try:
        number = int(operator.index(value))
    except TypeError:
        number = None
    if number is None or not low <= number < low + (1 << bits):
        kind = "int" if is_signed else "uint"
        raise TypeError(f"{name} has to be a whole number of type {kind}{bits}, found {value!r} of type {type(value)}")
    return number


def check_kind(name, value, kind):
    """Refuses what is none of a class."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} has to be of type {kind.__name__}, found type {type(value)}")
