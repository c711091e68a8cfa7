"""Makes a stub macOS SDK: enough to link a Mach-O executable on any system, nothing to run it.

    python3 apple_stub_sdk.py TARGET_FOLDER

A linker needs no Apple library, only the text files that list what each library exports. The list
of libSystem is the one that the Zig compiler ships (package `ziglang` on PyPI, one file is taken
out of it); those of frameworks stand below, so that each Apple function the project calls is
listed on purpose and a misspelt one fails the link.
"""

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ZIGLANG = "0.17.0"
SYSTEM_TBD = "ziglang/lib/libc/darwin/libSystem.tbd"
TARGETS = ["arm64-macos", "x86_64-macos"]

# Frameworks (/System/Library/Frameworks) and the C names the project uses of each.
FRAMEWORKS: dict[str, list[str]] = {}

# Libraries (/usr/lib) besides libSystem, by file name: install name and exported C names.
LIBRARIES = {
    "libiconv": ("/usr/lib/libiconv.2.dylib", ["iconv", "iconv_close", "iconv_open"]),
}

# In an SDK these are other names of libSystem.
ALIASES = ["libc", "libm", "libproc", "libpthread", "libdl"]


def main(sdk: Path) -> None:
    libraries = sdk / "usr" / "lib"
    libraries.mkdir(parents=True, exist_ok=True)

    # Kept under the version's name: a download of 100 MB is made once.
    original = sdk / f"libSystem-{ZIGLANG}.tbd"
    if not original.exists():
        original.write_bytes(downloaded_system_list())
    system = for_apple_silicon(original.read_text())
    for name in ["libSystem", *ALIASES]:
        (libraries / f"{name}.tbd").write_text(system)

    for name, (install_name, symbols) in LIBRARIES.items():
        (libraries / f"{name}.tbd").write_text(library_list(install_name, symbols))
    for name, symbols in FRAMEWORKS.items():
        folder = f"System/Library/Frameworks/{name}.framework"
        (sdk / folder).mkdir(parents=True, exist_ok=True)
        (sdk / folder / f"{name}.tbd").write_text(library_list(f"/{folder}/Versions/A/{name}", symbols))


def downloaded_system_list() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*pip, "--dest", folder, f"ziglang=={ZIGLANG}"], check=True)
        (wheel,) = Path(folder).glob("ziglang-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(SYSTEM_TBD)


def for_apple_silicon(text: str) -> str:
    """Rewrites the lists of targets: Apple's newest name the system's own variant arm64e (and its
    successors, which linkers do not know yet) where programs are plain arm64."""

    def rewritten(match: re.Match) -> str:
        targets = []
        for target in re.split(r"[\s,]+", match[2].strip()):
            architecture, system = target.split("-", 1)
            if not re.fullmatch(r"arm64e?|x86_64", architecture):
                continue
            target = architecture.replace("arm64e", "arm64") + "-" + system
            if target not in targets:
                targets.append(target)
        return f"{match[1]}[ {', '.join(targets)} ]"

    return re.sub(r"(targets:\s*)\[([^\]]*)\]", rewritten, text)


def library_list(install_name: str, symbols: list[str]) -> str:
    targets = f"[ {', '.join(TARGETS)} ]"
    lines = ["--- !tapi-tbd", "tbd-version: 4", f"targets: {targets}", f"install-name: '{install_name}'"]
    if symbols:
        names = ", ".join(f"'_{symbol}'" for symbol in symbols)
        lines += ["exports:", f"  - targets: {targets}", f"    symbols: [ {names} ]"]
    return "\n".join([*lines, "...", ""])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
