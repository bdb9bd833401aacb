#!/bin/sh
# Runs the op tests, the bench and the trainer of this pack on this machine, and writes a report.
#   ./run.sh [OUT]     OUT: folder for report.md, report.json and the logs; default ./report
# It uses only the files beside it and the GPU driver of the machine.
set -u
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export LD_LIBRARY_PATH
if [ -z "${XDG_RUNTIME_DIR:-}" ]; then
  XDG_RUNTIME_DIR=$(mktemp -d) || exit 1
  export XDG_RUNTIME_DIR
fi
exec "$here/bin/node" "$here/app/run-all.mjs" "${1:-report}"
