#!/usr/bin/env bash
# Builds the images with this machine's container engine, each as the head of its Dockerfile says, and
# lets the server of the one answer a call of the client in it, hardened as there.
#   image_container_test.sh      exit code 77: not of this run, or not to be had here, and why
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."

skip() {
  echo "SKIPPED: $1"
  exit 77
}
[ -n "${ETA_TEST_LONG-}" ] || skip "part of the long run (ETA_TEST_LONG)"
engine=
for candidate in podman docker; do
  if "$candidate" info >/dev/null 2>&1; then
    engine=$candidate
    break
  fi
done
[ -n "$engine" ] || skip "no container engine here (podman or docker)"
has_bases() { # DOCKERFILE: whether all images that it begins from are here already
  local base
  while read -r base; do
    case "$base" in *CUDA_IMAGE*) base=$(sed -n 's/^ARG CUDA_IMAGE=//p' "$1") ;; esac
    [ "$base" = scratch ] || "$engine" image inspect "$base" >/dev/null 2>&1 || return 1
  done < <(sed -nE 's/^FROM ([^ ]+).*/\1/p' "$1")
}
has_bases deploy/Dockerfile || skip "no container engine here that has the base image debian:12"

work=$(mktemp -d) made=() running=
finish() {
  [ -z "$running" ] || "$engine" rm -f "$running" >/dev/null 2>&1 || true
  [ ${#made[@]} -eq 0 ] || "$engine" rmi -f "${made[@]}" >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap finish EXIT
fail() {
  echo "image container: $1" >&2
  tail -n 30 "$work/log" >&2
  exit 1
}
build() { # DOCKERFILE TAG ARGUMENT...
  "$engine" build -f "$1" -t "$2" "${@:3}" . >"$work/log" 2>&1 || fail "$1 does not build"
  made+=("$2")
}

commit=(--build-arg REVISION="$(git rev-parse HEAD)"
  --build-arg SOURCE_DATE_EPOCH="$(git log -1 --format=%ct)")
build deploy/Dockerfile eta-server:tested "${commit[@]}"
build deploy/Dockerfile.front eta-front:tested
if has_bases deploy/Dockerfile.cuda; then build deploy/Dockerfile.cuda eta-server:tested-cuda "${commit[@]}"; fi

hardened=(--network=host --read-only --cap-drop=ALL --security-opt=no-new-privileges)
running=eta-server-tested-$$
"$engine" run -d --name "$running" "${hardened[@]}" eta-server:tested --listen=127.0.0.1:0 >"$work/log" 2>&1 ||
  fail "the server does not start"
address=
for _ in $(seq 600); do
  "$engine" logs "$running" >"$work/log" 2>&1
  address=$(sed -n 's/^listening on //p' "$work/log")
  [ -z "$address" ] || break
  sleep 0.1
done
[ -n "$address" ] || fail "not listening after 60 s"
ask() {
  "$engine" run --rm "${hardened[@]}" --entrypoint /usr/bin/etactl eta-server:tested "$@" \
    --server "$address" 2>>"$work/log"
}
ask health --service readiness >/dev/null || fail "not ready"
answer=$(ask generate --temperature 0 --max_tokens 8 'The tower was built in') || fail "no answer"
[ -n "$answer" ] || fail "an empty answer"
"$engine" stop -t 75 "$running" >/dev/null
code=$("$engine" inspect -f '{{.State.ExitCode}}' "$running")
[ "$code" = 0 ] || fail "exit code $code after a stop"
"$engine" run --rm "${hardened[@]}" eta-front:tested -v >"$work/log" 2>&1 || fail "the front's nginx does not run"
echo "image container: $engine built ${made[*]}; answered:$answer"
