"""`--tune=background`: models are tuned in a server, in moments without requests, and what was found is kept."""

import json
import re
import time

import numpy as np
import pytest

from support.models import io
from test_precision import parameters
from test_tune import explain, small_network

pytestmark = pytest.mark.halimede_only("a flag of ours")

SHAPE = [1, 16, 24, 24]
CONFIG = 'platform: "onnxruntime_onnx"\n' + io("input", "x", "FP32", SHAPE) + io("output", "y", "FP32", [1, 24])
CONFIG += parameters(intra_op_thread_count=1)
# The convolution and the product of the network.
OPERATORS = 2


@pytest.fixture
def database(tmp_path):
    return tmp_path / "tuning.jsonl"


@pytest.fixture
def start(repository, serve, tmp_path, database):
    """Starts servers of the repository, with caches of the test's own."""

    def start(*flags, name="m", config=CONFIG):
        repository.add(name, small_network(), config)
        caches = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
        return serve(repository, f"--tuning-database={database}", *flags, env=caches)

    return start


def ask(server, name="m"):
    numbers = np.linspace(-1, 1, np.prod(SHAPE), dtype=np.float32)
    data = {"name": "x", "shape": SHAPE, "datatype": "FP32", "data": numbers.tolist()}
    reply = server.http.infer(name, {"inputs": [data]})
    assert reply.status == 200, reply.body
    return np.array(reply.json["outputs"][0]["data"])


def wait_tuned(server, meanwhile=lambda: time.sleep(0.1)):
    """Until the model is not tuned any more."""
    end = time.monotonic() + 240
    while server.metric("halimede_tuning_active", "m") != 0:
        assert time.monotonic() < end, f"it is still being tuned:\n{server.log_text()[-4000:]}"
        meanwhile()


def lines(database):
    return [json.loads(line) for line in database.read_text().splitlines()]


def counted(server, what):
    return server.metric(f"halimede_tuning_{what}", "m")


def test_a_model_is_tuned_while_it_serves_and_only_once(start, database):
    server = start("--tune=background")
    exact = ask(server)
    answers = []

    def some_requests():
        answers.extend(ask(server) for _ in range(3))
        time.sleep(0.5)

    wait_tuned(server, some_requests)
    answers.append(ask(server))
    # Configurations differ by rounding alone.
    for answer in answers:
        np.testing.assert_allclose(answer, exact, rtol=1e-4, atol=1e-4 * np.abs(exact).max())
    server.wait_log(f"model 'm' is tuned while it serves: {OPERATORS} operators are to be measured")
    server.wait_log(rf"model 'm': {OPERATORS} operators measured in [\d.]+ s, \d are faster now")
    assert (counted(server, "operators"), counted(server, "waiting_operators")) == (OPERATORS, 0)
    assert counted(server, "duration_us") > 0
    found = lines(database)
    assert len(found) <= OPERATORS and len({record["operator"] for record in found}) == len(found)
    won = [record for record in found if record["config"]]
    assert counted(server, "won_operators") == len(won)
    assert all(record["warm"]["ratio"] > 0.99 and record["cold"]["ratio"] > 0.99 for record in won)
    server.stop()

    again = start("--tune=background")
    wait_tuned(again)
    # What was beyond doubt is not measured again: a slow moment of the machine leaves some of it in doubt.
    assert counted(again, "operators") == OPERATORS - len(found)
    np.testing.assert_allclose(ask(again), exact, rtol=1e-4, atol=1e-4 * np.abs(exact).max())


def test_what_is_known_is_not_measured_and_other_commands_read_it(start, database, tmp_path):
    first = start("--tune=background")
    wait_tuned(first)
    first.stop()
    model = tmp_path / "models" / "m" / "1" / "model.onnx"
    chosen = re.findall(r"tuned: (.*)", explain(model, "--tuning-database", database))
    assert len(chosen) == len([record for record in lines(database) if record["config"]])


def test_a_model_decides_for_itself(start, database):
    server = start(config=CONFIG + parameters(tune="background"))
    wait_tuned(server)
    assert counted(server, "operators") == OPERATORS
    server.stop()
    # In a slow moment of the machine everything is left in doubt, and nothing is written.
    database.unlink(missing_ok=True)
    off = start("--tune=background", config=CONFIG + parameters(tune="off"))
    metrics = [line for line in off.metrics_text().splitlines() if line.startswith("halimede_tuning") and "{" in line]
    assert metrics == [] and "is tuned while it serves" not in off.log_text()


def test_without_time_nothing_is_measured(start, database):
    server = start("--tune=background", "--tune-secs=0")
    wait_tuned(server)
    assert counted(server, "operators") == 0 and database.read_text() == ""
    ask(server)


def test_a_server_ends_in_the_midst_of_tuning(start):
    server = start("--tune=background")
    server.wait_log("model 'm' is tuned while it serves")
    begin = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - begin < 20


def test_a_place_that_cannot_be_written_ends_the_start(repository, serve, tmp_path):
    repository.add("m", small_network(), CONFIG)
    for source, reason in [("off", "no place for what is found"), (tmp_path, "cannot write the tuning database")]:
        server = serve(repository, "--tune=background", f"--tuning-database={source}", wait=False)
        assert server.wait_exit() == 1
        assert reason in server.log_text()
