"""The machine that something was measured on, and the build that was measured, in the words of every report."""

import datetime
import os
import platform
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def machine():
    """The processor and which class of machine of the project's tables it belongs to."""
    facts = dict(re.findall(r"^(model name|vendor_id|flags|model|cpu family)\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M))
    flags = facts.get("flags", "").split()
    intel, amd = (facts.get("vendor_id") == name for name in ("GenuineIntel", "AuthenticAMD"))
    kind = "M" if intel and "amx_tile" in flags else "Z" if amd and "avx512_bf16" in flags else "other"
    name = f"{facts.get('model name', platform.processor())} (family {facts.get('cpu family')}, model {facts.get('model')})"
    return {"class": kind, "cpu": name, "cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"}


def version(binary, build=""):
    """The binary's, and the commit that it was built of: that of the tree that this file lies in, unless it is given."""
    number = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    asked = ["git", "rev-parse", "--short", "HEAD"]
    commit = build or subprocess.run(asked, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return f"{number}+{commit}" if commit else number


def add_arguments(parser):
    """What every report of one program is told, and where it goes."""
    parser.add_argument("--build", default="", help="the commit that the binary was built of, where it came from elsewhere")
    parser.add_argument("--note", default="", help="what a reader of the report should know: what else ran")
    parser.add_argument("--json", type=Path, help="write everything that was measured to this file")
    parser.add_argument("--svg", type=Path, help="draw what is reported")


def facts(binary, build="", note=""):
    """What a report of one program says of itself."""
    return {"date": datetime.date.today().isoformat(), "machine": machine(), "version": version(binary, build), "note": note}


def heading(report):
    """The same in a sentence."""
    where = report["machine"]
    return (
        f"Class {where['class']}: {where['cpu']}, {where['cores']} cores, {where['system']}, {report['date']}, "
        f"halimede {report['version']}. {report['note']}"
    ).rstrip()
