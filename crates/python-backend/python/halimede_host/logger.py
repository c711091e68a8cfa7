"""The server's log."""

import enum

from . import channel
from .arguments import check_kind, shortened, text


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
        message = shortened(text("message", message))
        check_kind("level", level, LogLevel)
        # A process that a model forks has no lock in common with its parent, and the way to the server is its.
        if channel.is_connected() and not channel.is_forked():
            channel.server().send("log", level=level.value, text=message)
        else:
            print(message, flush=True)

    @staticmethod
    def log_info(message):
        """Writes what is worth knowing."""
        Logger.log(message, Logger.INFO)

    @staticmethod
    def log_warn(message):
        """Writes what may be wrong."""
        Logger.log(message, Logger.WARNING)

    @staticmethod
    def log_error(message):
        """Writes what is wrong."""
        Logger.log(message, Logger.ERROR)

    @staticmethod
    def log_verbose(message):
        """Writes what only somebody who looks for it wants to know."""
        Logger.log(message, Logger.VERBOSE)
