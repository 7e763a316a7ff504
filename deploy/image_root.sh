#!/usr/bin/env bash
# Collects into ROOT all that the run stage of an image consists of: the binaries, the shared
# libraries that they resolve to, CA certificates, a user, a model, the licences of it all, a bill
# of materials and where the binaries come from.
# Used by deploy/Dockerfile* and by tests/deploy/image_root_test.sh, which serves from such a root.
#   deploy/image_root.sh ROOT BINARY_DIR [--model DIR] [--library FILE]... [--revision COMMIT]
# --model bakes a model in, as /models/NAME; --library adds a library that is loaded at run time;
# --revision names the commit where there is no repository. BINARY_DIR is bin of a build.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

uid=65532 # the number that distroless images use for "nonroot"

usage() {
  sed -n '6,8s/^# *//p' "$0" >&2
  exit 2
}
[ $# -ge 2 ] || usage
root=$1
binaries=$2
shift 2
models=()
libraries=()
revision=()
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || usage
  case "$1" in
    --model) models+=("$2") ;;
    --library) libraries+=("$2") ;;
    --revision) if [ -n "$2" ]; then revision=(--revision "$2"); fi ;;
    *) usage ;;
  esac
  shift 2
done
[ ! -e "$root" ] || {
  echo "image_root: $root exists" >&2
  exit 1
}

# As Debian lays it out, /lib and /lib64 being links into /usr: the loader finds the usual folders
# without a cache, and a container runtime that injects a GPU driver recognises them.
mkdir -p "$root"/{etc/ssl/certs,tmp,usr/bin,usr/lib,usr/lib64,usr/share/doc/eta-server}
mkdir -p "$root"/{proc,sys,dev,models,var/lib/eta,var/lib/dpkg/status.d}
ln -s usr/bin "$root/bin"
ln -s usr/lib "$root/lib"
ln -s usr/lib64 "$root/lib64"
chmod 1777 "$root/tmp"
cp /etc/debian_version "$root/etc/"

install -m 0755 "$binaries/eta-server" "$binaries/etactl" "$root/usr/bin/"

# Each library under the name that it is asked for, as a file and not as a link.
sources=()
add_file() { # SOURCE TARGET
  local real
  [ ! -e "$root$2" ] || return 0
  real=$(readlink -f "$1")
  install -D -m 0755 "$real" "$root$2"
  # The package database may know a file of a merged /usr by either name.
  sources+=("$real" "${real#/usr}")
}
resolved=$(ldd "$binaries/eta-server" "$binaries/etactl" ${libraries[@]+"${libraries[@]}"})
if grep -F 'not found' <<<"$resolved" >&2; then
  echo "image_root: libraries are missing" >&2
  exit 1
fi
while read -r path; do
  case "$path" in
    /lib/* | /lib64/*) add_file "$path" "/usr$path" ;;
    *) add_file "$path" "$path" ;;
  esac
done < <(sed -nE 's/^\t([^ ]+ => )?(\/[^ ]+) \(0x.*/\2/p' <<<"$resolved" | sort -u)
libraries_dir=$(dirname "$(sed -nE 's/.*libc\.so\.6 => ([^ ]+) .*/\1/p' <<<"$resolved" | head -n 1)")
for library in ${libraries[@]+"${libraries[@]}"}; do
  add_file "$library" "/usr$libraries_dir/$(basename "$library")"
done

install -m 0644 /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
printf '%s\n' 'root:x:0:0:root:/:/sbin/nologin' "eta:x:$uid:$uid:eta:/var/lib/eta:/sbin/nologin" \
  >"$root/etc/passwd"
printf '%s\n' 'root:x:0:' "eta:x:$uid:" >"$root/etc/group"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
if [ "$(id -u)" -eq 0 ]; then chown "$uid:$uid" "$root/var/lib/eta"; fi

# Licences, and the records by which scanners know the packages that files came from.
install -m 0644 LICENSE "$root/usr/share/doc/eta-server/"
while read -r package; do
  if [ -e "/usr/share/doc/$package/copyright" ]; then
    install -D -m 0644 "/usr/share/doc/$package/copyright" "$root/usr/share/doc/$package/copyright"
  fi
  dpkg-query -s "$package" >"$root/var/lib/dpkg/status.d/$package"
done < <({ echo ca-certificates && dpkg-query -S "${sources[@]}" 2>/dev/null | cut -d: -f1; } | sort -u)

for model in ${models[@]+"${models[@]}"}; do
  target=$root/models/$(basename "$(readlink -f "$model")")
  mkdir "$target"
  find -L "$model" -maxdepth 1 -type f -exec install -m 0644 -t "$target" {} +
done

described=()
for model in ${models[@]+"${models[@]}"}; do described+=(--model "$root/models/$(basename "$(readlink -f "$model")")"); done
for library in ${libraries[@]+"${libraries[@]}"}; do described+=(--library "$library"); done
deploy/supply_chain/sbom.py --output "$root/usr/share/doc/eta-server/sbom.spdx.json" \
  ${described[@]+"${described[@]}"} "$binaries/eta-server" "$binaries/etactl"
deploy/supply_chain/provenance.py --output "$root/usr/share/doc/eta-server/provenance.json" \
  --build "$binaries/.." ${revision[@]+"${revision[@]}"} "$binaries/eta-server" "$binaries/etactl"
