#!/usr/bin/env bash
# run.sh OUT.json [--dry] [--model FOLDER_OR_GGUF]...: all that only a GPU can show, in one call of under eight minutes.
# --dry runs every part at a tiny size on torch's CPU device.
set -euo pipefail
cd "$(dirname "$0")/../../.."
exec "${PYTHON:-python}" docs/benchmarks/gpu/device_run.py "$@"
