#!/usr/bin/env bash
# Runs the three modes on the same workload and writes results/<time>/report.html; see --help.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$ROOT/scripts/venv.sh"
use_venv requirements.txt
cd "$ROOT"
exec "$PYTHON" -m client.compare "$@"
