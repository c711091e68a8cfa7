"""Started by the server with a socket as standard input."""

import json
import os
import struct
import sys


def refuse(text):
    data = json.dumps({"failed": {"error": text}}).encode()
    os.write(0, struct.pack("<I", len(data)) + data)
    sys.exit(1)


def start():
    try:
        import numpy  # noqa: F401
    except ImportError as error:
        refuse(
            f"the Python interpreter {sys.executable} cannot import numpy, which Python models need: {error}. Install it there, or "
            "name another interpreter with --backend-config=python,interpreter=PATH"
        )
    # Models write with print; what they write is wanted line by line.
    sys.stdout.reconfigure(line_buffering=True)
    # The instance's name, for who looks at the machine's processes: models find no arguments.
    del sys.argv[1:]
    from halimede_host import host

    host.main()


# Processes that a model starts with `multiprocessing` may import this script again.
if __name__ == "__main__":
    start()
