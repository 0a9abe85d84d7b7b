# Sourced by the commands at the top of the repository. Needs $ROOT.
#
# use_venv requirements.txt     sets $PYTHON to an interpreter that has these requirements: that of
#                               .venv, which is made, and brought up to date when the file changed.
# EB_PYTHON=/path/to/python     is used as it is instead, with whatever it has installed.
# run_module client.compare ... becomes that program, in the folder where the command was typed: paths
#                               among its arguments are the user's.

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
  [[ -t 2 ]] && quiet=--progress-bar=on # a person watches
  if ! "$PYTHON" -m pip install $quiet --disable-pip-version-check -r "$ROOT/$requirements" >&2; then
    echo "error: $requirements could not be installed, see above" >&2
    exit 1
  fi
  echo "$wanted" >"$stamp"
}

run_module() {
  export PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH}
  exec "$PYTHON" -P -m "$@" # -P: modules that lie in the user's folder must not shadow any
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
