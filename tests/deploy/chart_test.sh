#!/usr/bin/env bash
# Renders the Helm chart with Helm's library and checks what comes out: chart_test.py, of the front
# chart_front_test.py, and of the gateway chart_gateway_test.py. Before that, the front's Envoy configuration:
# envoy_config_test.py.
#   chart_test.sh BUILD_DIR            exit code 77: Helm's library cannot be had here, and why
#   chart_test.sh BUILD_DIR --write    writes deploy/kubernetes anew
#   chart_test.sh BUILD_DIR --pod      instead: runs the pod that the chart makes, pod_test.py
#   chart_test.sh BUILD_DIR --gateway  instead: runs the gateway's pod before two servers, gateway_pod_test.py
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
build=$(readlink -f "$1")
shift
environment=$build/tests/chart-python

# SMG is what its command line is held against.
requirements=("$here/requirements.txt" "$here/../../deploy/gateway/requirements.txt")
if ! cmp -s <(cat "${requirements[@]}") "$environment/requirements.txt"; then
  rm -rf "$environment"
  if ! { python3 -m venv "$environment" &&
    "$environment/bin/pip" install --quiet --disable-pip-version-check --timeout 30 --retries 2 \
      --only-binary :all: --no-deps --require-hashes "${requirements[@]/#/-r}"; } 2>"$build/tests/chart-pip.log"; then
    echo "SKIPPED: no Python environment with ${requirements[*]}:"
    tail -n 3 "$build/tests/chart-pip.log"
    exit 77
  fi
  cat "${requirements[@]}" >"$environment/requirements.txt"
fi
if [ "${1-}" = --pod ]; then exec "$environment/bin/python" -B "$here/pod_test.py" "$build/bin"; fi
if [ "${1-}" = --gateway ]; then exec "$environment/bin/python" -B "$here/gateway_pod_test.py" "$build/bin"; fi
export ETA_SERVER=$build/bin/eta-server
if [ $# -eq 0 ]; then
  "$environment/bin/python" -B "$here/envoy_config_test.py"
  "$environment/bin/python" -B "$here/chart_front_test.py"
  "$environment/bin/python" -B "$here/chart_gateway_test.py"
fi
exec "$environment/bin/python" -B "$here/chart_test.py" "$@"
