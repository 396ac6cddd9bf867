#!/usr/bin/env bash
# Makes .venv beside this folder and installs hypic-rag into it: setup.sh [test]. Where there is an NVIDIA GPU, with the
# extra cuda.
# A second run does nothing while pyproject.toml stays as it was.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
extra="${1:-}"
if [[ -n "$extra" && "$extra" != test ]]; then
    echo "usage: scripts/setup.sh [test]" >&2
    exit 2
fi

has_nvidia_gpu() { command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU '; }
if has_nvidia_gpu; then cuda=cuda; else cuda=; fi

wanted="$(cksum < pyproject.toml) in $PWD${cuda:+ with $cuda}"
for done_with in "$extra" test; do # with the test extra is more than without it
    if [[ -f ".venv/.ready-$done_with" && "$(cat ".venv/.ready-$done_with")" == "$wanted" ]]; then
        exit 0
    fi
done

python="${PYTHON:-python3}"
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "error: $python is $("$python" --version 2>&1), and hypic-rag needs Python 3.11 or newer." \
        "Install one and name it: PYTHON=python3.12 scripts/setup.sh" >&2
    exit 1
fi

echo "setup: installing into $PWD/.venv (once; a few minutes)" >&2
if ! .venv/bin/python -c '' 2>/dev/null; then
    "$python" -m venv --clear .venv
fi
rm -f .venv/.ready-*

# Not compiled ahead: Python compiles what is imported, a small part, when it first is.
install() { .venv/bin/python -m pip --disable-pip-version-check -qq install --no-compile "$@"; }

# Left to itself, pip takes the CUDA build of torch on Linux: 5 GB that a machine without a GPU cannot use.
install_cpu_torch() {
    local version=2.13.0
    if [[ "$(uname -s)" == Linux ]]; then
        install "torch==$version+cpu" 2>/dev/null && return
        install "torch==$version+cpu" --extra-index-url https://download.pytorch.org/whl/cpu 2>/dev/null && return
        echo "setup: no CPU-only build of torch $version was found; taking the package index's own build" >&2
    fi
    install "torch==$version"
}

if [[ -z "$cuda" ]] && ! .venv/bin/python -c 'import torch' 2>/dev/null; then
    install_cpu_torch
fi
extras="$extra${extra:+${cuda:+,}}$cuda"
install --editable ".${extras:+[$extras]}"
echo "$wanted" > ".venv/.ready-$extra"
