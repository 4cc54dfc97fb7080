"""Builds ``topologies.fabricd._core``: the C core and its system-call layer as one cffi extension.

The Python declarations are the C headers themselves, without their preprocessor lines, so that there is one
place where a structure or a function is declared.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
HEADERS = [
    *(f"core/{name}.h" for name in ("telemetry", "control", "frame", "fabric", "verbs", "dcqcn", "rnic")),
    "io/fabricd.h",
]
WARNINGS = ["-Wall", "-Wextra", "-Werror"] if os.environ.get("STRAGGLER_DEV") else []


def declarations(header: Path) -> str:
    """The header as cffi reads C: without comments and directives, but with its integer constants."""
    text = re.sub(r"/\*.*?\*/", " ", header.read_text(), flags=re.DOTALL)
    constant = re.compile(r"#define (\w+) +(\d+u?|0x[0-9a-fA-F]+u?) *$")
    lines = []
    for line in text.splitlines():
        if match := constant.match(line.rstrip()):
            lines.append(f"#define {match[1]} {match[2].rstrip('u')}")
        elif not line.startswith("#"):
            lines.append(line)
    return "\n".join(lines)


def relative(paths: list[Path]) -> list[str]:
    """Relative to the project, as setuptools wants its sources."""
    return [str(path.relative_to(HERE.parents[1])) for path in sorted(paths)]


ffibuilder = FFI()
for name in HEADERS:
    ffibuilder.cdef(declarations(HERE / name))
ffibuilder.set_source(
    "topologies.fabricd._core",
    "\n".join(f'#include "{name}"' for name in HEADERS),
    sources=relative([*HERE.glob("core/*.c"), *HERE.glob("io/*.c")]),
    depends=relative([*HERE.glob("core/*.h"), *HERE.glob("io/*.h")]),
    include_dirs=[str(HERE)],
    # assert() stays: a broken invariant in the data path must stop the run, not bend its result.
    extra_compile_args=["-std=gnu11", "-O2", "-g", "-UNDEBUG", *WARNINGS],
    libraries=["pthread"],
)

if __name__ == "__main__":
    os.chdir(HERE.parents[1])
    ffibuilder.compile(verbose=True)
