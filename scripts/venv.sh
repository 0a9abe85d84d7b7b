# Sourced by the commands at the top of the repository. Needs $ROOT.
#
# use_venv requirements.txt     sets $PYTHON to the interpreter of .venv. Makes .venv if it is missing
#                               and installs the requirements if the file has changed.
# EB_PYTHON=/path/to/python     this interpreter is used instead; nothing is installed.
# run_module client.compare ... runs that program in place of the shell, in the user's folder, so that
#                               relative paths among its arguments work.

use_venv() {
  local requirements=$1
  if [[ -n "${EB_PYTHON:-}" ]]; then
    PYTHON=$EB_PYTHON
    return
  fi
  PYTHON=$ROOT/.venv/bin/python
  local stamp=$ROOT/.venv/installed-$requirements wanted
  wanted=$(cd "$ROOT" && cat requirements.txt "$requirements" | cksum)
  if [[ -x $PYTHON && -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    return
  fi
  local lock
  exec {lock}<"$ROOT"
  flock "$lock" # of servers that start together, one installs
  if [[ -x $PYTHON && -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    exec {lock}<&-
    return
  fi
  if [[ ! -x $PYTHON ]]; then
    local base
    base=$(find_python)
    echo "making .venv with $($base --version)" >&2
    if ! "$base" -m venv "$ROOT/.venv"; then
      rm -rf "$ROOT/.venv"
      echo "error: '$base -m venv' failed, see above. On Debian and Ubuntu the package python3-venv" \
        "is needed. Or set EB_PYTHON to a Python that has $requirements installed." >&2
      exit 1
    fi
  fi
  echo "installing $requirements into .venv; at first use this downloads PyTorch and takes minutes" >&2
  local quiet=--quiet
  [[ -t 2 ]] && quiet=--progress-bar=on # on a terminal
  if ! "$PYTHON" -m pip install $quiet --disable-pip-version-check -r "$ROOT/$requirements" >&2; then
    echo "error: $requirements could not be installed, see above" >&2
    exit 1
  fi
  echo "$wanted" >"$stamp"
  exec {lock}<&-
}

run_module() {
  export PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH}
  exec "$PYTHON" -P -m "$@" # -P: modules in the user's folder must not shadow others
}

find_python() {
  local candidate
  for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "error: Python 3.11 or newer is needed; python3 is" \
    "$(python3 --version 2>/dev/null || echo 'not installed')." \
    "Install it, or set EB_PYTHON to one that has the requirements installed." >&2
  exit 1
}
