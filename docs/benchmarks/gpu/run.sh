#!/usr/bin/env bash
# run.sh OUT.json [--dry] [--set rocm] [--model FOLDER_OR_GGUF]... [--only PART]...: all that only a GPU can show, in one
# call of under eight minutes. The Python with the appliance in it is $PYTHON, or that of .venv, or `python`.
# --dry runs every part at a tiny size on torch's CPU device.
set -euo pipefail
cd "$(dirname "$0")/../../.."
[ -x .venv/bin/python ] && own=.venv/bin/python || own=python
exec "${PYTHON:-$own}" docs/benchmarks/gpu/device_run.py "$@"
