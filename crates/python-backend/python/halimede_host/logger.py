"""The server's log."""

_channel = None


def connect(channel):
    """From now on messages go to the server."""
    global _channel
    _channel = channel


class Logger:
    """Writes to the server's log."""

    INFO, WARNING, ERROR, VERBOSE = "info", "warning", "error", "verbose"

    class LogLevel:
        """How important a message is."""

        INFO, WARNING, ERROR, VERBOSE = "info", "warning", "error", "verbose"

    @staticmethod
    def log(message, level=INFO):
        """Writes a message."""
        if _channel is None:
            print(message, flush=True)
        else:
            _channel.send({"is": "log", "level": level, "text": str(message)})

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
