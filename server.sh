#!/usr/bin/env bash
# Starts a server:  ./server.sh dynamic
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$ROOT/scripts/venv.sh"

usage() {
  cat <<'USAGE'
usage: ./server.sh MODE [options]      serve a model on port 8500 until Ctrl-C
       ./server.sh MODE --help         every option, with its default and environment variable
       ./server.sh --list-models       models with a name: licence, size, memory, context
       ./server.sh modes [options]     the three modes at once, and a page that sends all the same requests
       ./server.sh router [options]    one address in front of many servers
       ./server.sh model-server ...    a model in a process of its own, for --remote-model
       ./server.sh launcher [options]  a model server and a server in front of it
       ./server.sh cluster [options]   many servers and a router, on the machines of a Ray cluster

MODE is how requests share the model:
  nobatch   one at a time
  static    a batch forms and runs until its longest request is done
  dynamic   requests join and leave at every iteration
USAGE
}

case "${1:-}" in
  nobatch | static | dynamic | --list-models)
    use_venv requirements.txt
    exec "$PYTHON" "$ROOT/app.py" "$@"
    ;;
  modes)
    shift
    use_venv requirements.txt
    first=${EB_PORT:-8500} servers=()
    page=http://127.0.0.1:$first
    for mode in dynamic static nobatch; do
      port=$((first + ${#servers[@]}))
      "$PYTHON" "$ROOT/app.py" "$mode" "$@" --port "$port" --cors-allow-origin "$page" \
        --data-dir "${DATA_DIR:-data}/$mode" &
      servers+=($!)
    done
    trap 'kill "${servers[@]}" 2>/dev/null' INT TERM
    echo "all three: $page/watch?with=http://127.0.0.1:$((first + 2)),http://127.0.0.1:$((first + 1)),$page"
    # a server that ends takes the others along; the trap interrupts the first wait
    wait -n "${servers[@]}" || true
    kill "${servers[@]}" 2>/dev/null || true
    wait
    ;;
  router)
    shift
    use_venv requirements.txt
    run_module router "$@"
    ;;
  model-server)
    shift
    use_venv requirements.txt
    run_module model_server "$@"
    ;;
  launcher)
    shift
    use_venv requirements.txt
    run_module launcher "$@"
    ;;
  cluster)
    shift
    use_venv requirements-cluster.txt
    run_module cluster "$@"
    ;;
  -h | --help)
    usage
    ;;
  *)
    [[ -n "${1:-}" ]] && echo "error: MODE is '$1'; allowed: nobatch, static, dynamic, modes, router, model-server, launcher, cluster" >&2
    usage >&2
    exit 2
    ;;
esac
