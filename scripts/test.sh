#!/usr/bin/env bash
# Sets everything up and runs ruff, mypy and the tests. Arguments go to pytest: test.sh tests/cache -k disk
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh test
.venv/bin/python -m ruff check .
.venv/bin/python -m mypy
exec .venv/bin/python -m pytest "$@"
