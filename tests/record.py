"""Write the answers of a real tritonserver into `recorded/`.

    TRITONSERVER=<command> python tests/record.py [FILE ...]

Only cases without an answer are sent; remove an answer to record it again.
"""

import http.client
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from support import models, peer, recorded  # noqa: E402
from support.server import Server, peer_command  # noqa: E402


def main():
    if not peer_command():
        sys.exit("set TRITONSERVER to the command that starts a real tritonserver")
    files = [Path(name) for name in sys.argv[1:]] or sorted(recorded.FOLDER.glob("http_*.json"))
    with tempfile.TemporaryDirectory() as folder:
        models.standard(f"{folder}/ours")
        repository = peer.copy(f"{folder}/ours", f"{folder}/peer")
        server = Server([repository])
        for path in files:
            cases = recorded.load(path)
            for case in cases:
                if "status" in case:
                    continue
                try:
                    case.update(recorded.send(server.http, case))
                except (http.client.HTTPException, OSError) as error:
                    print(f"no answer: {path.name} {case['name']}: {error!r}")
                    if server.process.poll() is not None or server.wait_exit(5) is not None:
                        server = Server([repository])
            recorded.save(path, cases)
        server.stop()


if __name__ == "__main__":
    main()
