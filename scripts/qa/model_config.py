"""L0_model_config without the models of other frameworks.

NVIDIA's script first copies models of every framework and ends where one is
missing; this walks over the same folders with the same rules and leaves out
those of other frameworks.
"""

import re
import shutil

OTHERS = ("tensorrt", "openvino", "pytorch", "python")
# Version folders that the script makes, because git keeps no empty ones.
COPIED = {"autofill_noplatform_success/onnx/cpu_instance": "qa_identity_model_repository/onnx_zero_1_float16"}
# A model that must not load passes when one of the expected texts is in an error line of the log.
REFUSED = """
timeout 20 /opt/tritonserver/bin/tritonserver --model-repository={models} {flags} >server.log 2>&1
status=$?
cat server.log
[ $status = 124 ] && {{ echo "unexpected success"; exit 1; }}
for expected in {expected}; do
  grep "^E[0-9][0-9][0-9][0-9].*$(cat $expected)" server.log && exit 0
  echo "not found: $(cat $expected)"
done
exit 1
"""


def cases(folder, data):
    """Name and command of each case; `folder` is a copy of the suite."""
    for flags in ("--strict-model-config=true", "--disable-auto-complete-config"):
        for target in sorted((folder / "noautofill_platform").iterdir()):
            models = fresh(folder)
            shutil.copytree(target, models / target.name)
            config = models / target.name / "config.pbtxt"
            if config.exists():
                text = "".join(line for line in config.read_text().splitlines(True) if "platform:" not in line)
                config.write_text(text + '\nplatform: "onnxruntime_onnx"\n')
                (models / target.name / "1").mkdir(exist_ok=True)
            yield f"{target.name} {flags}", refused(models, models / target.name, flags)
    for target in sorted((folder / "special_cases").iterdir()):
        models = fresh(folder)
        shutil.copytree(target, models / target.name)
        (models / target.name / "1").mkdir(exist_ok=True)
        flags = ""
        if target.name == "invalid_platform":
            flags = "--disable-auto-complete-config"
            model = data / "qa_model_repository" / "onnx_float32_float32_float32" / "1" / "model.onnx"
            shutil.copy(model, models / target.name / "1")
        if target.name == "runtime_escape":
            (models / target.name / "dummy_runtime").mkdir()
            (models / target.name / "dummy_runtime" / "libtriton_identity.so").touch()
        yield f"special {target.name}", refused(models, models / target.name, flags)
    for target in targets(folder / "autofill_noplatform"):
        models = fresh(folder)
        one = placed(target, models)
        yield f"{target.parent.name}/{target.name}", refused(models, one or models, "--strict-model-config=false")
    for target in targets(folder / "autofill_noplatform_success"):
        models = fresh(folder)
        placed(target, models)
        name = f"{target.parent.parent.name}/{target.parent.name}/{target.name}"
        on_the_cpu(models / target.name, 2 if target.parent.name == "onnx" else 1)
        if name in COPIED:
            shutil.copytree(data / COPIED[name] / "1", models / target.name / "1", dirs_exist_ok=True)
        yield name, served(models, target.name)


def on_the_cpu(model, count):
    """Expected texts of a machine with one GPU, as a machine without would have them."""
    for expected in model.glob("expected*"):
        group = rf"count: {count} kind: KIND_CPU"
        expected.write_text(re.sub(r"count: 1\s+gpus: 0\s+kind: KIND_GPU", group, expected.read_text()))


def targets(folder):
    for kind in sorted(folder.iterdir()):
        if kind.name not in OTHERS:
            yield from sorted(kind.iterdir())


def fresh(folder):
    models = folder / "models"
    shutil.rmtree(models, ignore_errors=True)
    models.mkdir()
    return models


def placed(target, models):
    """A model of its own, or a whole repository; every model gets a version."""
    one = (target / "config.pbtxt").exists() or re.match("no_config", target.name)
    shutil.copytree(target, models / target.name if one else models, dirs_exist_ok=True)
    for config in models.glob("*/config.pbtxt"):
        if not any(entry.is_dir() for entry in config.parent.iterdir()):
            (config.parent / "1").mkdir()
    return models / target.name if one else None


def refused(models, place, flags):
    return REFUSED.format(models=models, flags=flags, expected=f"$(ls {place}/expected*)")


def served(models, name):
    """The configuration that the server answers is one of the expected."""
    return f"""
/opt/tritonserver/bin/tritonserver --model-repository={models} --strict-model-config=false >server.log 2>&1 &
server=$!
for _ in $(seq 200); do
  curl -sf localhost:8000/v2/health/ready && break
  kill -0 $server || {{ cat server.log; exit 100; }}
  sleep 0.05
done
python3 compare_status.py --expected_dir {models}/{name} --model {name}
status=$?
kill $server
wait $server
exit $status
"""
