#!/usr/bin/env bash
# Installs what is missing of the named sections of packages.txt: install_packages.sh build test
set -euo pipefail

list="$(dirname "$(readlink -f "$0")")/packages.txt"
[ $# -gt 0 ] || {
  echo "usage: $0 SECTION...   (sections of $list)" >&2
  exit 2
}

missing=()
for section in "$@"; do
  grep -qxF "[$section]" "$list" || {
    echo "error: $list has no section [$section]" >&2
    exit 2
  }
  while read -r package; do
    state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] || missing+=("$package")
  done < <(awk -v section="[$section]" '
    /^\[/ { inside = ($0 == section); next }
    inside && NF && !/^#/ { print $1 }' "$list")
done

if [ ${#missing[@]} -eq 0 ]; then
  echo "packages: all present"
  exit 0
fi
echo "packages: installing ${#missing[@]}: ${missing[*]}"

command -v apt-get >/dev/null || {
  echo "error: this needs apt-get (Debian 12); elsewhere install the equivalents by hand" >&2
  exit 1
}
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || {
    echo "error: installing packages needs root or sudo" >&2
    exit 1
  }
  as_root=(sudo)
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get "$@" >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    echo "error: apt-get $1 failed" >&2
    exit 1
  }
}
apt update -q
apt install -q -y --no-install-recommends "${missing[@]}"
