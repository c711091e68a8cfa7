"""The server's log."""

import enum
import os
import sys

from . import channel
from .arguments import check_kind, shortened, text

# Characters of a file's name that are told.
FILE_NAME_MAX = 255


class LogLevel(enum.Enum):
    """How important a message is."""

    INFO, WARNING, ERROR, VERBOSE = "info", "warning", "error", "verbose"


class Logger:
    """Writes to the server's log."""

    LogLevel = LogLevel
    INFO, WARNING, ERROR, VERBOSE = LogLevel

    @staticmethod
    def log(message, level=INFO):
        """Writes a message."""
        write(message, level)

    @staticmethod
    def log_info(message):
        """Writes what is worth knowing."""
        write(message, LogLevel.INFO)

    @staticmethod
    def log_warn(message):
        """Writes what may be wrong."""
        write(message, LogLevel.WARNING)

    @staticmethod
    def log_error(message):
        """Writes what is wrong."""
        write(message, LogLevel.ERROR)

    @staticmethod
    def log_verbose(message):
        """Writes what only somebody who looks for it wants to know."""
        write(message, LogLevel.VERBOSE)


def write(message, level):
    """Writes a message as that of the line that called the `Logger`."""
    message = shortened(text("message", message))
    check_kind("level", level, LogLevel)
    # A process that a model forks has no lock in common with its parent, and the way to the server is its.
    if channel.is_connected() and not channel.is_forked():
        file, line = caller()
        channel.server().send("log", level=level.value, text=message, file=file, line=line)
    else:
        print(message, flush=True)


def caller():
    """The file and the line that called the `Logger`, three functions up."""
    try:
        frame = sys._getframe(3)
    except ValueError:  # the interpreter itself did
        return "", 0
    return os.path.basename(frame.f_code.co_filename)[:FILE_NAME_MAX], frame.f_lineno or 0
