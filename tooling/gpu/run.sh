#!/bin/sh
# Tests, measures and trains on this machine's GPU, part by part, and writes a report.
#   ./run.sh [OUT] [--only NAME,...] [--scale full|tiny] [--python PYTHON]
#   ./run.sh --list         the parts, what they take, and three commands that run all
# OUT (default ./report) gets report.md, report.json and rows.jsonl, a line for each row as soon as
# it is measured. It uses only the files beside it, the GPU driver of the machine, and PyTorch where
# there is one.
set -u
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export LD_LIBRARY_PATH
if [ -z "${XDG_RUNTIME_DIR:-}" ]; then
  XDG_RUNTIME_DIR=$(mktemp -d) || exit 1
  export XDG_RUNTIME_DIR
fi
exec "$here/bin/node" "$here/app/tooling/gpu/main.mjs" "$@"
