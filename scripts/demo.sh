#!/usr/bin/env bash
# Sets everything up, ingests the bundled documents and asks three questions about them.
# Arguments go to `hypic-rag demo`.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
"$root/scripts/setup.sh"
exec "$root/.venv/bin/hypic-rag" demo "$@"
