#!/usr/bin/env bash
# Runs the three modes on the same workload and writes results/<time>/report.html; see --help.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$ROOT/scripts/venv.sh"
use_venv requirements.txt
export EB_POLICY_FOLDER=${EB_POLICY_FOLDER:-$PWD} # the servers it starts look here for a policy
run_module client.compare "$@"
