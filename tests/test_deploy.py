"""What deploy/ ships, as far as it can be run or read here."""

import os
import plistlib
import re
import shutil
import signal
import socket
import subprocess
import sys

import kubernetes_validate as validate
import pytest
import yaml

from support.server import ROOT, binary, free_ports

pytestmark = pytest.mark.halimede_only("ours to deploy")

DEPLOY = ROOT / "deploy"


def flags_are_known(arguments):
    """Each flag is one of the server's: those that it does not know it names."""
    command = [str(binary()), "serve", *[flag for flag in arguments if flag.startswith("--")], "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="systemd is Linux's")
def test_the_service_manager_is_told(tmp_path, serve):
    """systemd's protocol: datagrams at a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        server = serve(ROOT / "examples" / "repository", env={"NOTIFY_SOCKET": str(tmp_path / "notify")}, wait=False)
        assert manager.recv(4096).decode().splitlines() == ["READY=1", "STATUS=Serving"]
        # By then it is.
        assert server.http.get("/v2/health/ready").status == 200
        server.process.send_signal(signal.SIGTERM)
        assert manager.recv(4096).decode().splitlines() == ["STOPPING=1"]
        assert server.process.wait(40) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="systemd is Linux's")
def test_a_service_manager_that_is_gone_harms_nobody(tmp_path, serve):
    server = serve(ROOT / "examples" / "repository", env={"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    # It is told once the server answers already.
    server.wait_log(r"cannot tell the service manager at \$NOTIFY_SOCKET")
    assert server.http.get("/v2/health/ready").status == 200


def test_the_unit_of_systemd(tmp_path):
    text = (DEPLOY / "systemd" / "halimede.service").read_text()
    command = re.search(r"^ExecStart=(.*)$", text, re.M)[1].split()
    assert command[:2] == ["/usr/local/bin/halimede", "serve"] and flags_are_known(command[2:])[0]
    # Who can write into the repository is the server (docs/threat-model.md): the service cannot.
    settings = dict(line.split("=", 1) for line in text.splitlines() if re.match(r"[A-Z]\w*=", line))
    assert settings["ProtectSystem"] == "strict"
    roots = {"StateDirectory": "/var/lib", "CacheDirectory": "/var/cache", "LogsDirectory": "/var/log", "RuntimeDirectory": "/run"}
    writable = [f"{root}/{name}" for key, root in roots.items() for name in settings.get(key, "").split()]
    writable += settings.get("ReadWritePaths", "").split()
    (repository,) = [flag.split("=")[1] for flag in command if flag.startswith("--model-repository=")]
    assert writable == ["/var/cache/halimede"] and not repository.startswith("/var/cache")
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "halimede.service"
    unit.write_text(text.replace(command[0], str(binary())))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True)
    assert "halimede.service" not in done.stderr, done.stderr


def test_the_job_of_launchd():
    job = plistlib.loads((DEPLOY / "launchd" / "halimede.server.plist").read_bytes())
    assert job["ProgramArguments"][:2] == ["/usr/local/bin/halimede", "serve"]
    assert flags_are_known(job["ProgramArguments"][2:])[0]
    # Longer than the server gives what it has begun.
    assert job["ExitTimeOut"] > 30 and job["KeepAlive"] == {"SuccessfulExit": False}


def test_flags_that_are_not_there_are_found():
    good, said = flags_are_known(["--no-such-flag=1"])
    assert not good and "no-such-flag" in said


@pytest.mark.parametrize("name", ["serving-runtime", "cluster-serving-runtime"])
def test_the_runtimes_of_kserve(name):
    """Their containers, as those of a pod of Kubernetes: KServe's own schema is in no package index."""
    runtime = yaml.safe_load((DEPLOY / "kserve" / f"{name}.yaml").read_text())
    assert runtime["kind"] == {"serving-runtime": "ServingRuntime"}.get(name, "ClusterServingRuntime")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": {"containers": runtime["spec"]["containers"]}}
    validate.validate(pod, "1.31", strict=True)
    (container,) = runtime["spec"]["containers"]
    assert flags_are_known(container["args"])[0]
    (port,) = container["ports"]
    assert f"--http-port={port['containerPort']}" in container["args"]
    pod["spec"]["containers"][0]["port"] = 1
    with pytest.raises(Exception, match="port"):
        validate.validate(pod, "1.31", strict=True)


def test_the_file_of_envoy():
    envoy = yaml.safe_load((DEPLOY / "envoy" / "envoy.yaml").read_text())["static_resources"]
    clusters = {cluster["name"] for cluster in envoy["clusters"]}
    routed = re.findall(r"'cluster': '(\w+)'", str(envoy["listeners"]))
    assert sorted(routed) == sorted(clusters) == ["grpc", "grpc_sequences", "http", "http_sequences"]


@pytest.mark.skipif(sys.platform != "linux", reason="a container is Linux's")
def test_the_image_has_all_that_the_binary_needs(tmp_path):
    """The folder that becomes the image, as the root of a process."""
    root = tmp_path / "rootfs"
    subprocess.run([DEPLOY / "container" / "rootfs.sh", binary(), root], check=True)
    if os.geteuid() != 0:
        pytest.skip("only root may change the root of a process")
    shutil.copytree(ROOT / "examples" / "repository" / "add_sub", root / "models" / "add_sub")
    run = ["chroot", "--userspec=1000:1000", str(root), "/usr/bin/tritonserver", "--model-repository=/models"]
    ports = [f"--{name}-port={port}" for name, port in zip(["http", "grpc", "metrics"], free_ports(3))]
    server = subprocess.Popen([*run, *ports], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        log = []
        for line in server.stdout:
            log.append(line)
            if re.match(r"\| add_sub +\| 1 +\| READY +\|", line):
                break
        else:
            raise AssertionError("".join(log))
    finally:
        server.terminate()
        server.wait(40)
