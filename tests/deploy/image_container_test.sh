#!/usr/bin/env bash
# Builds the images with this machine's container engine, each as the head of its Dockerfile says, and
# lets the server of the one answer a call of the client in it: hardened as there, but for buildah,
# which has no such options and needs no rights that a container takes.
#   image_container_test.sh      exit code 77: not of this run, or not to be had here, and why
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."

skip() {
  echo "SKIPPED: $1"
  exit 77
}
[ -n "${ETA_TEST_LONG-}" ] || skip "part of the long run (ETA_TEST_LONG)"

# image_is_there IMAGE, build_image ARGUMENT..., run_image ARGUMENT... IMAGE COMMAND...: an engine that
# runs containers here, else buildah, which can where these cannot.
engine=
for candidate in podman docker; do
  if "$candidate" run --pull=never --rm debian:12 true >/dev/null 2>&1 </dev/null; then
    engine=$candidate
    break
  fi
done
if [ -z "$engine" ] && buildah images >/dev/null 2>&1; then engine=buildah; fi
case "$engine" in
  podman | docker)
    image_is_there() { "$engine" image inspect "$1" >/dev/null 2>&1; }
    build_image() { "$engine" build "$@"; }
    run_image() { # IMAGE PROGRAM ARGUMENT...
      "$engine" run --rm --network=host --read-only --cap-drop=ALL --security-opt=no-new-privileges \
        --entrypoint "$2" "$1" "${@:3}"
    }
    ;;
  buildah)
    export BUILDAH_ISOLATION=${BUILDAH_ISOLATION-chroot}
    image_is_there() { buildah inspect --type image "$1" >/dev/null 2>&1; }
    build_image() { buildah build "$@"; }
    run_image() {
      local container
      container=$(buildah from --pull-never "$1")
      containers+=("$container")
      buildah run "$container" -- "${@:2}"
    }
    ;;
  *) skip "no container engine here (podman, docker or buildah)" ;;
esac
has_bases() { # DOCKERFILE: whether all images that it begins from are here already
  local base
  while read -r base; do
    case "$base" in *CUDA_IMAGE*) base=$(sed -n 's/^ARG CUDA_IMAGE=//p' "$1") ;; esac
    [ "$base" = scratch ] || image_is_there "$base" || return 1
  done < <(sed -nE 's/^FROM ([^ ]+).*/\1/p' "$1")
}
has_bases deploy/Dockerfile || skip "no container engine here that has the base image debian:12"

work=$(mktemp -d) made=() containers=() running=
# The server that an engine runs here, or else the engine, which hands a signal on. The server has a
# process of its own that compiles formats; that one is not asked.
stop_running() {
  local process=$running child
  while [ "$(cat "/proc/$process/comm")" != eta-server ]; do
    # Of any of its threads.
    child=$(cat "/proc/$process/task"/*/children | cut -d' ' -f1)
    [ -n "$child" ] || break
    process=$child
  done
  kill -TERM "$process"
}
finish() {
  if [ -n "$running" ]; then stop_running 2>/dev/null || true; fi
  if [ ${#containers[@]} -gt 0 ]; then buildah rm "${containers[@]}" >/dev/null 2>&1 || true; fi
  if [ ${#made[@]} -gt 0 ]; then "$engine" rmi -f "${made[@]}" >/dev/null 2>&1 || true; fi
  rm -rf "$work"
}
trap finish EXIT
fail() {
  echo "image container: $1" >&2
  tail -n 30 "$work/log" >&2
  exit 1
}
build() { # DOCKERFILE TAG ARGUMENT...
  build_image -f "$1" -t "$2" "${@:3}" . >"$work/log" 2>&1 || fail "$1 does not build"
  made+=("$2")
}

commit=(--build-arg REVISION="$(git rev-parse HEAD)"
  --build-arg SOURCE_DATE_EPOCH="$(git log -1 --format=%ct)")
build deploy/front/Dockerfile eta-front:tested
build deploy/gateway/Dockerfile eta-gateway:tested
build deploy/Dockerfile eta-server:tested "${commit[@]}"
if has_bases deploy/Dockerfile.cuda; then build deploy/Dockerfile.cuda eta-server:tested-cuda "${commit[@]}"; fi

run_image eta-front:tested /usr/sbin/nginx -v >"$work/log" 2>&1 || fail "the front's nginx does not run"
run_image eta-front:tested /usr/bin/mtail --version >"$work/log" 2>&1 || fail "the front's mtail does not run"
run_image eta-gateway:tested /usr/bin/python3 /usr/lib/gateway/start.py --help >"$work/log" 2>&1 ||
  fail "the gateway's SMG does not run"
run_image eta-server:tested /usr/bin/eta-server --listen=127.0.0.1:0 >"$work/log" 2>&1 &
running=$!
address=
for _ in $(seq 600); do
  address=$(sed -n 's/^listening on //p' "$work/log" | tr -d '\r')
  [ -z "$address" ] || break
  kill -0 "$running" 2>/dev/null || fail "the server does not start"
  sleep 0.1
done
[ -n "$address" ] || fail "not listening after 60 s"
ask() { run_image eta-server:tested /usr/bin/etactl "$@" --server "$address" 2>>"$work/log"; }
ask health --service readiness >/dev/null || fail "not ready"
answer=$(ask generate --temperature 0 --max_tokens 8 'The tower was built in') || fail "no answer"
[ -n "$answer" ] || fail "an empty answer"
stop_running
wait "$running" || fail "exit code $? after SIGTERM"
running=
echo "image container: $engine built ${made[*]}; answered:$answer"
