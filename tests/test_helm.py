"""The Helm chart of deploy/helm, rendered by Helm itself and checked as Kubernetes would: `scripts/install-helm.sh`
brings `helm`, and nothing here asks a cluster."""

import os
import re
import shutil
import subprocess
import time

import kubernetes_validate
import pytest
import yaml

from support.http import Http
from support.server import ROOT, binary, free_ports

CHART = ROOT / "deploy" / "helm" / "halimede"
HELM = shutil.which("helm", path=f"{os.environ['PATH']}:{ROOT / 'target' / 'tools'}")
# The oldest and the newest version that the chart is for and whose schema is at hand.
VERSIONS = ("1.30", "1.37")

if not HELM and os.environ.get("HALIMEDE_EXPECT_HELM"):
    raise FileNotFoundError("helm is neither in PATH nor in target/tools: run scripts/install-helm.sh")
pytestmark = [
    pytest.mark.halimede_only("ours to deploy"),
    pytest.mark.skipif(not HELM, reason="helm is not installed: run scripts/install-helm.sh"),
]


def helm(*arguments):
    return subprocess.run([HELM, *arguments], capture_output=True, text=True, env={**os.environ, "HELM_CACHE_HOME": os.devnull})


def render(tmp_path, **values):
    """The manifests of a release `models` in the namespace `serving`, by kind, each checked; services by name."""
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    done = helm("template", "models", str(CHART), "--namespace=serving", f"--values={tmp_path / 'values.yaml'}")
    assert done.returncode == 0, done.stderr
    manifests = {}
    for one in yaml.safe_load_all(done.stdout):
        check(one)
        kind = one["kind"]
        manifests[f"{kind} {one['metadata']['name']}" if kind in manifests else kind] = one
    return manifests


def refused(tmp_path, **values):
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    done = helm("template", "models", str(CHART), f"--values={tmp_path / 'values.yaml'}")
    assert done.returncode != 0, done.stdout
    return done.stderr


def check(manifest):
    """Against the schemas of Kubernetes, where unknown fields are errors. Those of operators are in no index of Python's:
    what theirs hold is compared below, field by field."""
    if manifest["kind"] not in ("PodMonitor", "ScaledObject"):
        for version in VERSIONS:
            kubernetes_validate.validate(manifest, version, strict=True)


def everything(**values):
    on = {"enabled": True}
    return {
        "autoscaling": {"keda": on}, "podMonitor": on, "podDisruptionBudget": on, "service": {"headless": True},
        "modelRepository": {"claim": {"create": True}}, **values,
    }  # fmt: skip


def container(manifests):
    (one,) = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    return one


def test_the_chart_has_no_faults():
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0 and "0 chart(s) failed" in done.stdout, done.stdout + done.stderr


def test_the_check_finds_faults(tmp_path):
    manifests = render(tmp_path, **everything())
    for kind, place in (
        ("Deployment", ("spec", "template", "spec", "containers", 0)), ("Service", ("spec",)),
        ("PodDisruptionBudget", ("spec",)),
    ):  # fmt: skip
        part = manifests[kind]
        for step in place:
            part = part[step]
        part["noSuchField"] = 1
        with pytest.raises(kubernetes_validate.ValidationError):
            check(manifests[kind])


def test_what_a_plain_release_is(tmp_path):
    manifests = render(tmp_path)
    assert sorted(manifests) == ["Deployment", "Service", "ServiceAccount"]
    deployment = manifests["Deployment"]["spec"]
    assert deployment["replicas"] == 1
    labels = deployment["template"]["metadata"]["labels"]
    for selector in (deployment["selector"]["matchLabels"], manifests["Service"]["spec"]["selector"]):
        assert selector.items() <= labels.items()
    ports = {port["name"]: port["containerPort"] for port in container(manifests)["ports"]}
    assert ports == {"http": 8000, "grpc": 8001, "metrics": 8002}
    assert {p["targetPort"] for p in manifests["Service"]["spec"]["ports"]} == set(ports)


def test_everything_at_once(tmp_path):
    manifests = render(tmp_path, **everything())
    assert sorted(manifests) == [
        "Deployment", "PersistentVolumeClaim", "PodDisruptionBudget", "PodMonitor", "ScaledObject", "Service",
        "Service models-halimede-pods", "ServiceAccount",
    ]  # fmt: skip
    claimed = [v["persistentVolumeClaim"]["claimName"] for v in manifests["Deployment"]["spec"]["template"]["spec"]["volumes"]
               if "persistentVolumeClaim" in v]  # fmt: skip
    assert claimed == [manifests["PersistentVolumeClaim"]["metadata"]["name"]]
    monitor = manifests["PodMonitor"]
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert monitor["spec"] == {
        "selector": {"matchLabels": manifests["Deployment"]["spec"]["selector"]["matchLabels"]},
        "podMetricsEndpoints": [{"port": "metrics", "path": "/metrics", "interval": "15s"}],
    }
    assert manifests["Service models-halimede-pods"]["spec"]["clusterIP"] == "None"


def test_a_pod_may_nothing_that_it_does_not_need(tmp_path):
    manifests = render(tmp_path)
    pod, one = manifests["Deployment"]["spec"]["template"]["spec"], container(manifests)
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 1000
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert one["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    mounts = {mount["name"]: mount for mount in one["volumeMounts"]}
    assert mounts["models"]["readOnly"] is True
    # What is written lies where there is room for it.
    (cache,) = [e["value"] for e in one["env"] if e["name"] == "XDG_CACHE_HOME"]
    assert {cache, "/tmp", "/dev/shm"} <= {mount["mountPath"] for mount in one["volumeMounts"]}


@pytest.mark.parametrize(("delay", "exit_timeout"), [(10, 30), (0, 120)])
def test_the_pod_lives_as_long_as_its_drain(tmp_path, delay, exit_timeout):
    manifests = render(tmp_path, drain={"delaySeconds": delay, "exitTimeoutSeconds": exit_timeout})
    one = container(manifests)
    assert f"--exit-timeout-secs={exit_timeout}" in one["args"]
    assert one.get("lifecycle") == ({"preStop": {"sleep": {"seconds": delay}}} if delay else None)
    grace = manifests["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert delay + exit_timeout < grace <= delay + exit_timeout + 10


def test_replicas_follow_the_queue_by_either_way(tmp_path):
    scaled = {"minReplicas": 2, "maxReplicas": 5, "queueMicroseconds": 20000}
    manifests = render(tmp_path, autoscaling={**scaled, "hpa": {"enabled": True}})
    spec = manifests["HorizontalPodAutoscaler"]["spec"]
    assert "replicas" not in manifests["Deployment"]["spec"] and "ScaledObject" not in manifests
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 5)
    assert spec["scaleTargetRef"]["name"] == manifests["Deployment"]["metadata"]["name"]
    (metric,) = spec["metrics"]
    assert metric["pods"]["target"] == {"type": "AverageValue", "averageValue": "20000"}
    adapter = yaml.safe_load((CHART.parent / "prometheus-adapter.yaml").read_text())
    (rule,) = adapter["rules"]["custom"]
    assert rule["name"]["as"] == metric["pods"]["metric"]["name"]

    manifests = render(tmp_path, autoscaling={**scaled, "keda": {"enabled": True}})
    assert "replicas" not in manifests["Deployment"]["spec"] and "HorizontalPodAutoscaler" not in manifests
    scaler = manifests["ScaledObject"]
    query = scaler["spec"]["triggers"][0]["metadata"].pop("query")
    assert 'namespace="serving",pod=~"models-halimede-.*"' in query
    assert scaler["apiVersion"] == "keda.sh/v1alpha1"
    assert scaler["spec"] == {
        "scaleTargetRef": {"name": manifests["Deployment"]["metadata"]["name"]},
        "minReplicaCount": 2,
        "maxReplicaCount": 5,
        "pollingInterval": 15,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 300}}}},
        "triggers": [{
            "type": "prometheus",
            "metricType": "Value",
            "metadata": {"serverAddress": "http://prometheus-operated.monitoring.svc:9090", "threshold": "20000"},
        }],
    }  # fmt: skip


def test_what_is_asked_of_prometheus_is_there(tmp_path, serve, examples):
    """Both ways of scaling name metrics that the server has."""
    query = render(tmp_path, autoscaling={"keda": {"enabled": True}})["ScaledObject"]["spec"]["triggers"][0]["metadata"]["query"]
    adapter = (CHART.parent / "prometheus-adapter.yaml").read_text()
    there = set(re.findall(r"^(\w+)\{", examples.metrics_text(), re.M))
    for text in (query, adapter):
        named = set(re.findall(r"\bnv_\w+", text))
        assert len(named) == 2 and named <= there


def test_the_server_starts_with_these_arguments_and_answers_the_probes(tmp_path):
    """The chart's arguments as they are, but for folder and ports, under the name that the image starts."""
    ports = dict(zip(("http", "grpc", "metrics"), free_ports(3)))
    models = {"path": str(ROOT / "examples" / "repository"), "volume": {"emptyDir": {}}}
    one = container(render(tmp_path, ports=ports, modelRepository=models, args=["--cache-config=local,size=1048576"]))
    os.symlink(binary(), tmp_path / "tritonserver")
    command = [str(tmp_path / "tritonserver"), *one["args"]]
    with open(tmp_path / "log", "w+") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            http = Http(f"127.0.0.1:{ports['http']}")
            wait_open(server, http, one["startupProbe"]["httpGet"]["path"], log)
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                get = one[probe]["httpGet"]
                assert get["port"] == "http" and http.get(get["path"]).status == 200
        finally:
            server.terminate()
            assert server.wait(40) == 0


def wait_open(server, http, path, log):
    while True:
        try:
            if http.get(path).status == 200:
                return
        except OSError:
            time.sleep(0.02)
        if server.poll() is not None:
            log.seek(0)
            raise AssertionError(log.read()[-4000:])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"autoscaling": {"hpa": {"enabled": True}, "keda": {"enabled": True}}}, "choose one"),
        ({"modelRepository": {"claim": {"create": True}, "volume": {"persistentVolumeClaim": None, "emptyDir": {}}}}, "name the claim"),
        ({"modelRepository": {"path": "models"}}, "modelRepository.path|modelRepository/path"),
        ({"modelRepository": {"subPath": "../other"}}, "subPath"),
        ({"drain": {"delay": 3}}, "delay"),
        ({"args": ["model-control-mode=explicit"]}, "args"),
        ({"noSuchValue": 1}, "noSuchValue"),
    ],
)
def test_values_that_cannot_be_meant(tmp_path, values, said):
    assert re.search(said, refused(tmp_path, **values))
