#!/usr/bin/env bash
# Renders the Helm chart with Helm's library and checks what comes out: chart_test.py. Before that,
# the front's Envoy configuration: envoy_config_test.py.
#   chart_test.sh BUILD_DIR            exit code 77: Helm's library cannot be had here, and why
#   chart_test.sh BUILD_DIR --write    writes deploy/kubernetes anew
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
build=$(readlink -f "$1")
shift
environment=$build/tests/chart-python

if ! cmp -s "$here/requirements.txt" "$environment/requirements.txt"; then
  rm -rf "$environment"
  if ! { python3 -m venv "$environment" &&
    "$environment/bin/pip" install --quiet --disable-pip-version-check --timeout 30 --retries 2 \
      --only-binary :all: --require-hashes -r "$here/requirements.txt"; } 2>"$build/tests/chart-pip.log"; then
    echo "SKIPPED: no Python environment with $here/requirements.txt:"
    tail -n 3 "$build/tests/chart-pip.log"
    exit 77
  fi
  cp "$here/requirements.txt" "$environment/"
fi
[ $# -gt 0 ] || "$environment/bin/python" -B "$here/envoy_config_test.py"
ETA_SERVER=$build/bin/eta-server exec "$environment/bin/python" -B "$here/chart_test.py" "$@"
