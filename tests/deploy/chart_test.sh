#!/usr/bin/env bash
# Renders the Helm chart with Helm's library and checks what comes out: chart_test.py, and of the
# front chart_front_test.py. Before that, the front's Envoy configuration: envoy_config_test.py.
#   chart_test.sh BUILD_DIR            exit code 77: Helm's library cannot be had here, and why
#   chart_test.sh BUILD_DIR --write    writes deploy/kubernetes anew
#   chart_test.sh BUILD_DIR --pod      instead: runs the pod that the chart makes, pod_test.py
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
if [ "${1-}" = --pod ]; then exec "$environment/bin/python" -B "$here/pod_test.py" "$build/bin"; fi
if [ $# -eq 0 ]; then
  "$environment/bin/python" -B "$here/envoy_config_test.py"
  "$environment/bin/python" -B "$here/chart_front_test.py"
fi
ETA_SERVER=$build/bin/eta-server exec "$environment/bin/python" -B "$here/chart_test.py" "$@"
