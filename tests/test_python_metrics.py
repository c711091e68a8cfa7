"""Metrics that Python models make for themselves."""

import threading

import pytest
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from support.python_models import INTERPRETER, RUNS, add, ask, config
from support.server import ROOT
from support.waiting import wait_until

TEXTS = config({"IN": "STRING"}, {"OUT": "STRING"})
TWO = config({"IN": "STRING"}, {"OUT": "STRING"}, extra="instance_group [ { kind: KIND_CPU count: 2 } ]\n")

# The model of the documentation.
DOCUMENT = (ROOT / "docs" / "python-models.md").read_text().split("## Metrics of a model's own")[1]
DOCUMENTED = DOCUMENT.split("```python\n")[1].split("```")[0]
DOCUMENTED_METRICS = DOCUMENT.split("```\n")[2].split("```")[0]

# Triton's words before what the server says, of an instance.
OF = "Failed to process the request for model 'runs_0_0', message: "
CLEARED = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should be "
    "deleted AFTER its corresponding 'Metric' objects have been deleted."
)


@pytest.fixture
def runs(repository, serve):
    """A function that lets a model run a text, and one that gives the lines of metrics with a word in them."""
    server = serve(add(repository, "runs", RUNS, TEXTS), INTERPRETER)
    with httpclient.InferenceServerClient(server.http_address) as http:
        yield (
            lambda *lines: ask(http, "runs", "\n".join(lines)).decode(),
            lambda word: [line for line in server.metrics_text().splitlines() if word in line],
        )


def test_the_model_of_the_documentation(repository, serve):
    add(repository, "lengths", DOCUMENTED, config({"IN": "STRING"}, {"OUT": "STRING"}))
    server = serve(repository, INTERPRETER)
    with httpclient.InferenceServerClient(server.http_address) as http:
        for text in ("one", "a longer text"):
            assert ask(http, "lengths", text).decode() == text
    assert DOCUMENTED_METRICS in server.metrics_text()


def test_counters_gauges_and_histograms(runs):
    run, metrics = runs
    made = "c = pb_utils.MetricFamily('mine_total', 'what is\\ncounted', pb_utils.MetricFamily.COUNTER)"
    assert run(made, "m = c.Metric({'z': 'last', 'a': 'quo\"te'})", "result = m.value()") == "0.0"
    assert run("m.increment(2)", "m.increment(np.float32(0.5))", "result = m.value()") == "2.5"
    assert metrics("mine_total") == [
        "# HELP mine_total what is\\ncounted", "# TYPE mine_total counter", 'mine_total{a="quo\\"te",z="last"} 2.5',
    ]  # fmt: skip
    run("g = pb_utils.MetricFamily(name='mine', description='d', kind=pb_utils.MetricFamily.GAUGE)")
    assert run("n = g.Metric()", "n.set(5)", "n.increment(-7.5)", "result = n.value()") == "-2.5"
    assert metrics("mine ")[-1] == "mine -2.5"
    assert run("n.set(float('nan'))", "result = n.value()") == "nan"
    run("n.set(float('-inf'))")
    assert metrics("mine ")[-1] == "mine -Inf"
    run("h = pb_utils.MetricFamily('my_sizes', 'd', pb_utils.MetricFamily.HISTOGRAM)")
    run("o = h.Metric(labels={'a': 'b'}, buckets=[0.1, 1, 2.5])", "[o.observe(value) for value in (0.05, 1, 6.0)]")
    assert metrics("my_sizes") == [
        "# HELP my_sizes d", "# TYPE my_sizes histogram", 'my_sizes_count{a="b"} 3', 'my_sizes_sum{a="b"} 7.05',
        'my_sizes_bucket{a="b",le="0.1"} 1', 'my_sizes_bucket{a="b",le="1"} 2', 'my_sizes_bucket{a="b",le="2.5"} 2',
        'my_sizes_bucket{a="b",le="+Inf"} 3',
    ]  # fmt: skip


def test_metrics_are_there_as_long_as_their_family(runs):
    run, metrics = runs
    make = "pb_utils.MetricFamily('shared', '{}', pb_utils.MetricFamily.GAUGE)"
    run(f"f = {make.format('first')}", f"g = {make.format('second')}", "a = f.Metric()", "b = g.Metric()", "a.set(3)")
    assert run("result = b.value()") == "3.0"
    assert metrics("shared") == ["# HELP shared first", "# TYPE shared gauge", "shared 3"]
    # The family keeps its metrics, whoever holds them.
    run("del a")
    assert run("del f", "result = b.value()") == "3.0"
    assert run("del g", "result = b.value()") == f"TritonModelException: Failed to get metric value: {CLEARED}"
    assert run("b.set(1)") == f"TritonModelException: Failed to set metric value: {CLEARED}"
    assert metrics("shared") == []
    # Nobody counts there any more, so that the name may have another kind.
    assert run("f = pb_utils.MetricFamily('shared', '', pb_utils.MetricFamily.COUNTER)") == "nothing"


def test_what_a_metric_cannot_do_is_told(runs):
    run, metrics = runs
    family = "pb_utils.MetricFamily('{}', '', pb_utils.MetricFamily.{})"
    for name, kind in (("c", "COUNTER"), ("g", "GAUGE"), ("h", "HISTOGRAM")):
        buckets = "buckets=[1.0]" if name == "h" else ""
        run(f"{name} = {family.format('one_' + name, kind)}", f"{name}1 = {name}.Metric({buckets})")
    of = "TRITONSERVER_METRIC_KIND_"
    for code, text in (
        ("c1.increment(-1)", f"Failed to increment metric value: {OF}{of}COUNTER can only be incremented monotonically by "
                             "non-negative values."),
        ("c1.set(1)", f"Failed to set metric value: {OF}{of}COUNTER does not support Set"),
        ("c1.observe(1)", f"Failed to observe metric value: {OF}{of}COUNTER does not support Observe"),
        ("g1.observe(1)", f"Failed to observe metric value: {OF}{of}GAUGE does not support Observe"),
        ("h1.increment(1)", f"Failed to increment metric value: {OF}{of}HISTOGRAM does not support Increment"),
        ("h1.value()", f"Failed to get metric value: {OF}{of}HISTOGRAM does not support Value"),
        ("c.Metric(labels=[])", "Failed to create metric. Labels must be a dictionary."),
        ("h.Metric(buckets=(1, 2))", "Failed to create metric. Buckets must be a list."),
        ("g.Metric(buckets=[1])", "Failed to create metric. Unexpected buckets found."),
        ("h.Metric()", "Failed to create metric. Missing required buckets."),
        ("h.Metric({'a': 'b'}, [1, 1])", f"Error when creating Metric: {OF}Bucket Boundaries must be strictly sorted"),
        ("g.Metric({'a b': 'c'})", f"Error when creating Metric: {OF}Invalid label name"),
        (family.format("a b", "GAUGE"), f"Error when creating MetricFamily: {OF}Invalid metric name"),
        (family.format("one_g", "COUNTER"), f"Error when creating MetricFamily: {OF}Family name already exists with "
                                            "different type"),
    ):  # fmt: skip
        assert run(code) == f"TritonModelException: {text}", code
    assert run("g.Metric({'a': 1})").startswith(f"TritonModelException: Error when creating Metric: {OF}")
    assert run("pb_utils.MetricFamily('x', 'y', 7)").startswith("TypeError")
    assert run("g1.set('1')").startswith("TypeError")
    # What a model counts under a name of the server's is told beside it, or not at all.
    run(f"s = {family.format('nv_inference_count', 'COUNTER')}", "s.Metric({'by': 'me'}).increment(3)")
    run(f"t = {family.format('nv_inference_exec_count', 'GAUGE')}", "t.Metric({'by': 'me'}).set(3)")
    assert metrics('by="me"') == ['nv_inference_count{by="me"} 3']
    assert len(metrics("# TYPE nv_inference_count ")) == 1


def test_instances_and_models_share_what_has_one_name(repository, serve):
    code = """
class TritonPythonModel:
    def initialize(self, args):
        self.family = pb_utils.MetricFamily("calls", "d", pb_utils.MetricFamily.COUNTER)
        self.metric = self.family.Metric()
        self.metric.increment(1)

    def execute(self, requests):
        [self.metric.increment(1) for _ in range(500)]
        if requests[0].inputs()[0].as_numpy()[0] == b"die":
            os._exit(1)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())]) for request in requests]
"""
    for name in ("a", "b"):
        add(repository, name, code, TWO)
    server = serve(repository, INTERPRETER, "--model-control-mode=explicit", "--load-model=*")
    with httpclient.InferenceServerClient(server.http_address) as http:

        def calls():
            lines = [line for line in server.metrics_text().splitlines() if line.startswith("calls ")]
            return [float(line.split()[1]) for line in lines]

        def ask_alone(name):
            with httpclient.InferenceServerClient(server.http_address) as mine:
                ask(mine, name, "x")

        assert calls() == [4.0]
        threads = [threading.Thread(target=ask_alone, args=(name,)) for name in ("a", "b") * 4]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert calls() == [4004.0]
        # Who is left keeps what was counted; with the last it is gone.
        http.unload_model("a")
        assert calls() == [4004.0]
        with pytest.raises(InferenceServerException):
            ask(http, "b", "die")
        assert calls()[0] >= 4504
        http.unload_model("b")
        wait_until(lambda: calls() == [], "nobody counts any more")
        http.load_model("a")
        assert calls() == [2.0]
        assert "# HELP calls d" in server.metrics_text()


def test_a_server_without_metrics_runs_models_that_have_some(repository, serve):
    server = serve(add(repository, "runs", RUNS, TEXTS), INTERPRETER, "--allow-metrics=false")
    with httpclient.InferenceServerClient(server.http_address) as http:
        code = "m = pb_utils.MetricFamily('x', 'y', pb_utils.MetricFamily.GAUGE).Metric\nresult = m().value()"
        # The family is gone with the method that was taken from it.
        assert ask(http, "runs", code).decode() == "0.0"
        with pytest.raises(OSError):
            server.metrics_text()
