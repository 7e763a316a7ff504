#!/usr/bin/env bash
# Runs a comparison with another program of the field, which comes as a pinned package of PyPI.
#   run.sh BUILD_DIR NAME [--long] [ARGUMENT ...]   runs NAME.py in an environment of NAME.txt's
#                                                   packages; --long: in a long run only
# Exit code 77: not tried here, and why.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
build=$(readlink -f "$1")
name=$2
shift 2
if [ "${1-}" = --long ]; then
  shift
  if [ -z "${ETA_TEST_LONG-}" ]; then
    echo "SKIPPED: part of the long run (ETA_TEST_LONG)"
    exit 77
  fi
fi
requirements=$here/$name.txt
environment=$build/tests/oracles/$name

if ! cmp -s "$requirements" "$environment/requirements.txt"; then
  rm -rf "$environment"
  mkdir -p "$environment"
  if ! { python3 -m venv "$environment" &&
    "$environment/bin/pip" install --quiet --disable-pip-version-check --timeout 30 --retries 2 \
      --only-binary :all: --no-deps --require-hashes -r "$requirements"; } 2>"$environment/pip.log"; then
    echo "SKIPPED: no Python environment with $requirements:"
    tail -n 3 "$environment/pip.log"
    exit 77
  fi
  cp "$requirements" "$environment/requirements.txt"
fi
exec "$environment/bin/python" -B "$here/$name.py" "$build" "$@"
