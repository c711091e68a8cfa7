"""The server's log."""

from . import channel


class Logger:
    """Writes to the server's log."""

    INFO, WARNING, ERROR, VERBOSE = "info", "warning", "error", "verbose"

    class LogLevel:
        """How important a message is."""

        INFO, WARNING, ERROR, VERBOSE = "info", "warning", "error", "verbose"

    @staticmethod
    def log(message, level=INFO):
        """Writes a message."""
        if channel.is_connected():
            channel.server().send({"is": "log", "level": level, "text": str(message)})
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
