"""The server's log."""

import enum

from . import channel
from .arguments import check_kind, check_text


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
        check_text("message", message)
        check_kind("level", level, LogLevel)
        if channel.is_connected():
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
