#!/usr/bin/env bash
# Loses every third packet or so between server and clients for a minute, in a network of its own:
# needs root, and iptables with its statistic match; without them it says so and is skipped (77).
# usage: network_loss.sh network_fault_test
set -euo pipefail

skip() {
  echo "network_loss: skipped: $1"
  exit 77
}

[ -n "${ETA_TEST_LONG-}" ] || skip "part of the long run (ETA_TEST_LONG)"
[ "$(id -u)" -eq 0 ] || skip "needs root"
command -v iptables >/dev/null || skip "needs iptables"
unshare --net true 2>/dev/null || skip "no network namespaces here"

# shellcheck disable=SC2016  # expanded inside
exec unshare --net bash -c '
  ip link set lo up
  loss="INPUT -i lo -m statistic --mode random --probability 0.3 -j DROP"
  iptables --append $loss && iptables --delete $loss ||
    { echo "network_loss: skipped: iptables cannot drop at random here"; exit 77; }
  # The test makes the file when the loss is to begin and when it is to end.
  file=$(mktemp --dry-run)
  for change in --append --delete; do
    until [ -e "$file" ]; do sleep 0.01; done
    iptables $change $loss
    rm "$file"
  done &
  ETA_TEST_LOSS=$file "$1" --gtest_filter="NetworkLoss.*" && result=0 || result=$?
  kill %1 2>/dev/null
  exit "$result"
' -- "$1"
