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
"$PYTHON" -m pytest -m "$marks" ${arguments[@]+"${arguments[@]}"}
