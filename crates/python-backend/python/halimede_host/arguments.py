"""Checks of what models call functions with: a wrong argument is the model's mistake, and told where it is made."""


def check_text(name, value):
    """Refuses what is no text."""
    if not isinstance(value, str):
        raise TypeError(f"{name} has to be a str, found type {type(value)}")


def check_whole(name, value, bits, is_signed=False):
    """Refuses what is no whole number of so many bits."""
    low = -(1 << (bits - 1)) if is_signed else 0
    if not isinstance(value, int) or not low <= value < low + (1 << bits):
        kind = "int" if is_signed else "uint"
        raise TypeError(f"{name} has to be a whole number of type {kind}{bits}, found {value!r} of type {type(value)}")


def check_kind(name, value, kind):
    """Refuses what is none of a class."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} has to be of type {kind.__name__}, found type {type(value)}")
