#!/usr/bin/env bash
# All checks. --long adds the soak and many-seed forms; other arguments go to pytest:
#   ./test.sh tests/api -k stream
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$ROOT/scripts/venv.sh"
use_venv requirements-dev.txt
cd "$ROOT"

marks="not long"
arguments=()
for argument in "$@"; do
  if [[ $argument == --long ]]; then marks=""; else arguments+=("$argument"); fi
done

"$PYTHON" -m ruff check .
"$PYTHON" -m ruff format --check .
"$PYTHON" -m mypy
# Three at a time, since most wait for processes; -n 0 runs them in one process, for a debugger.
# Idle threads of torch should not spin on cores that others need.
export OMP_WAIT_POLICY=passive
"$PYTHON" -m pytest -m "$marks" -n 3 --dist worksteal ${arguments[@]+"${arguments[@]}"}
