#!/usr/bin/env bash
# Serves from exactly the files that the run stage of deploy/Dockerfile holds, in the conditions of
# a hardened container: an empty root with nothing else in it, mounted read-only, a user that is
# not root, no capabilities, no new privileges. Asks for health and an answer with the client of
# the same root, as there is no shell, then stops it as a container runtime does.
#   image_root_test.sh BINARY_DIR      exit code 77: cannot be tried here, and why
set -euo pipefail
source_dir=$(dirname "$(readlink -f "$0")")/../..
uid=65532

fail() {
  echo "image root: $*" >&2
  exit 1
}

# The second half runs in namespaces of its own: what it mounts and starts ends with it.
if [ "${1-}" != --inside ]; then
  binaries=$(readlink -f "$1")
  isolate=(unshare --mount --pid --mount-proc --fork --kill-child)
  if [ "$(id -u)" -ne 0 ]; then isolate+=(--user --map-root-user); fi
  "${isolate[@]}" true 2>/dev/null || {
    echo "SKIPPED: mount and process namespaces cannot be made here (root, or user namespaces)"
    exit 77
  }
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  "$source_dir/deploy/image_root.sh" "$work/root" "$binaries" --model "$source_dir/models/eta-27m"
  ! compgen -G "$work/root/bin/*sh" >/dev/null || fail "there is a shell in it"
  described=$work/root/usr/share/doc/eta-server
  while read -r file; do
    grep -qF "\"$file\"" "$described/sbom.spdx.json" || fail "the bill of materials lacks $file"
  done < <(cd "$work/root" && find usr/bin models usr/lib usr/lib64 etc/ssl -type f | sed -E 's,^,/,' |
    sed -E 's,^/usr(/lib(64)?/),\1,')
  grep -qF "$(sha256sum <"$work/root/usr/bin/eta-server" | cut -d' ' -f1)" "$described/provenance.json" ||
    fail "the provenance is of another binary"
  [ -z "$(find "$work/root" -perm /6000)" ] || fail "there are setuid programs in it"
  echo "root: $(find "$work/root" -type f | wc -l) files, $(du -sm "$work/root" | cut -f1) MiB, of it" \
    "$(du -sm "$work/root/models" | cut -f1) MiB models"
  "${isolate[@]}" "$0" --inside "$work" "$(id -u)"
  exit
fi

work=$2
root=$work/root
mount --make-rprivate /
mount --bind "$root" "$root"
for place in proc sys dev; do mount --rbind "/$place" "$root/$place"; done
owner=
if [ "$3" -eq 0 ]; then owner=,uid=$uid,gid=$uid; fi
mount -t tmpfs -o "size=16m,mode=0700$owner" tmpfs "$root/var/lib/eta" # the only place to write
mount -o remount,bind,ro "$root"
! touch "$root/file" 2>/dev/null || fail "the root can be written to"

# enter PROGRAM ARGUMENT...: in the root, as the user of the image.
if [ "$3" -eq 0 ]; then
  enter=(setpriv --no-new-privs chroot --userspec="$uid:$uid" --groups= "$root")
else
  enter=(setpriv --no-new-privs unshare --user --map-user="$uid" --map-group="$uid" --root="$root")
fi

env -i PATH="$PATH" "${enter[@]}" /usr/bin/eta-server --model=/models/eta-27m --listen=127.0.0.1:0 \
  --metrics_listen=127.0.0.1:0 --profile_store=/var/lib/eta/profiles.db --threads=1 >"$work/out" 2>"$work/errors" &
server=$!
address=
for _ in $(seq 600); do
  address=$(sed -n 's/^listening on //p' "$work/out")
  [ -z "$address" ] || break
  kill -0 "$server" 2>/dev/null || fail "did not start: $(cat "$work/errors")"
  sleep 0.1
done
[ -n "$address" ] || fail "not listening after 60 s: $(cat "$work/errors")"

status=/proc/$server/status
for expected in "CapEff:[[:space:]]*0+" "CapPrm:[[:space:]]*0+" "NoNewPrivs:[[:space:]]*1" "Seccomp:[[:space:]]*2"; do
  grep -qE "^$expected\$" "$status" || fail "wanted $expected: $(cat "$status")"
done
grep -qE '^Max core file size +0 +0 ' "/proc/$server/limits" || fail "may leave core files"
if [ "$3" -eq 0 ]; then
  grep -qE "^Uid:[[:space:]]*${uid}[[:space:]]" "$status" || fail "user: $(grep Uid "$status")"
fi

ask() { env -i PATH="$PATH" "${enter[@]}" /usr/bin/etactl "$@" --server "$address"; }
ask health --service readiness >/dev/null || fail "readiness"
ask health --service liveness >/dev/null || fail "liveness"
answer=$(ask generate --temperature 0 --max_tokens 8 'The tower was built in' 2>>"$work/errors") ||
  fail "generate: $(cat "$work/errors")"
[ -n "$answer" ] || fail "an empty answer"
ask profiles list >/dev/null || fail "profile store: $(cat "$work/errors")"

port=$(sed -nE 's|^metrics on http://127.0.0.1:([0-9]+)/metrics$|\1|p' "$work/out")
exec 3<>"/dev/tcp/127.0.0.1/$port" || fail "metrics port: $(cat "$work/out")"
printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
grep -q '^eta_requests_total{.*code="OK".*} 1' <&3 || fail "the answer is not in the metrics"

kill -TERM "$server"
wait "$server" || fail "exit code $? after SIGTERM: $(cat "$work/errors")"
echo "image root: started, healthy, answered, drained; read-only, user $uid, no capabilities"
