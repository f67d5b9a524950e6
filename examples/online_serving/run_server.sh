#!/usr/bin/env bash
# Serve speech at http://localhost:8000, with OpenAI's routes and the settings of one machine class.
#
#   examples/online_serving/run_server.sh                                   the shipped checkpoint
#   examples/online_serving/run_server.sh openbmb/VoxCPM2                   the published one
#   DEPLOY=deploy/h200.yaml PORT=9000 examples/online_serving/run_server.sh openbmb/VoxCPM2
#
# Further arguments go to vLLM's server (--api-key, --ssl-keyfile, ...).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

model=()
if [[ $# -gt 0 && $1 != -* ]]; then
  model=("$1")
  shift
fi
PATH="$PWD/.venv/bin:$PATH"
exec voxnative serve "${model[@]}" --deploy "${DEPLOY:-deploy/cpu.yaml}" --port "${PORT:-8000}" "$@"
