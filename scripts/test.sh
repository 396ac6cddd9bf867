#!/usr/bin/env bash
# Sets everything up and runs ruff, mypy and the tests. Arguments go to pytest: test.sh tests/cache -k disk
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh test
.venv/bin/python -m ruff check .
.venv/bin/python -m mypy
if [[ $# -gt 0 ]]; then
    exec .venv/bin/python -m pytest "$@"
fi

# Two processes of one thread each: small models gain nothing from more threads, and waiting threads spin.
export OMP_NUM_THREADS=1
.venv/bin/python -m pytest -n 2

# Triton and flash-linear-attention lie in folders of their own: where transformers finds both and no GPU, its models fail.
fetch() {
    local folder=$1
    shift
    [[ -f $folder/.ready ]] && return
    .venv/bin/python -m pip --disable-pip-version-check -qq install --no-compile --no-deps --upgrade --target "$folder" "$@"
    touch "$folder/.ready"
}
fetch .triton triton==3.7.1
fetch .fla flash-linear-attention==0.6.0 fla-core==0.6.0 einops==0.8.2
TRITON_INTERPRET=1 PYTHONPATH=.triton .venv/bin/python -m pytest -n 2 \
    tests/kernels tests/engine/on_device tests/engine/test_moe.py
PYTHONPATH=.fla:.triton .venv/bin/python -m pytest -n 2 tests/engine/with_fla tests/engine/test_fla_naive.py
