#!/usr/bin/env bash
# What a new user does, from a clone in an empty home: `make start`, one chat, a second
# start, `glmspark stop`; with --check also `make check`. Of this checkout only the last
# commit is used. Usage: tests/fresh_clone.sh [--check]
set -euo pipefail
source=$(git -C "$(dirname "$0")/.." rev-parse --show-toplevel)
folder=$(mktemp -d)
clone="$folder/a fresh clone"
export HOME="$folder/home"
mkdir "$HOME"
unset XDG_CACHE_HOME XDG_CONFIG_HOME XDG_DATA_HOME XDG_STATE_HOME XDG_RUNTIME_DIR
unset GLMSPARK_KIT VIRTUAL_ENV PYTHONPATH

finish() {
  status=$?
  [[ ! -x "$clone/.venv/bin/glmspark" ]] || "$clone/.venv/bin/glmspark" stop || status=1
  rm -rf "$folder"
  exit "$status"
}
trap finish EXIT

git clone --quiet "$source" "$clone"
cd "$clone"
make start
address=$(.venv/bin/glmspark status --json |
  .venv/bin/python -c 'import json, sys; print(json.load(sys.stdin)["url"])')
curl --fail-with-body --silent --show-error --max-time 60 "$address/chat/completions" \
  -H 'content-type: application/json' -d '{"model": "GLM-5.3-Flash-EXL3",
    "max_tokens": 8, "messages": [{"role": "user", "content": "Hello"}]}' |
  grep '"completion_tokens":8'
make start | grep 'already LIVE'
.venv/bin/glmspark stop
[[ -z $(git status --porcelain) ]] || { git status --short && exit 1; }
[[ ${1-} != --check ]] || make check
echo "fresh clone: serves, answers and stops"
