#!/usr/bin/env bash
# Collects into ROOT all that the run stage of an image consists of: the binaries, the shared
# libraries that they resolve to, CA certificates, a user, a model, the licences of it all, a bill
# of materials and where the binaries come from.
# Used by deploy/Dockerfile* and by tests/deploy/image_root_test.sh, which serves from such a root.
#   deploy/image_root.sh ROOT BINARY_DIR [--model DIR] [--library FILE]... [--revision COMMIT]
#     [--xgrammar DIR]
# --model bakes a model in, as /models/NAME; --library adds a library that is loaded at run time;
# --revision names the commit where there is no repository; --xgrammar names the sources of xgrammar
# where the binaries have it. BINARY_DIR is bin of a build.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

# shellcheck source=deploy/image_parts.sh
. deploy/image_parts.sh

usage() {
  sed -n '6,10s/^# *//p' "$0" >&2
  exit 2
}
[ $# -ge 2 ] || usage
root=$1
binaries=$2
shift 2
models=()
libraries=()
revision=()
xgrammar=()
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || usage
  case "$1" in
    --model) models+=("$2") ;;
    --library) libraries+=("$2") ;;
    --xgrammar) xgrammar=(--xgrammar "$2") ;;
    --revision) if [ -n "$2" ]; then revision=(--revision "$2"); fi ;;
    *) usage ;;
  esac
  shift 2
done
image_folders
mkdir -p "$root"/{etc/ssl/certs,usr/share/doc/eta-server,models,var/lib/eta}

install -m 0755 "$binaries/eta-server" "$binaries/etactl" "$root/usr/bin/"

image_libraries "$binaries/eta-server" "$binaries/etactl" ${libraries[@]+"${libraries[@]}"}
for library in ${libraries[@]+"${libraries[@]}"}; do
  image_file "$library" "/usr$image_libraries_dir/$(basename "$library")"
done

install -m 0644 /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
image_user eta /var/lib/eta
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
writable=("$root/var/lib/eta")
if [ ${#libraries[@]} -gt 0 ]; then
  mkdir -p "$root/var/cache/cuda" # CUDA_CACHE_PATH
  writable+=("$root/var/cache/cuda")
fi
if [ "$(id -u)" -eq 0 ]; then chown "$image_uid:$image_uid" "${writable[@]}"; fi

install -m 0644 LICENSE "$root/usr/share/doc/eta-server/"
if [ ${#xgrammar[@]} -gt 0 ]; then
  sources=${xgrammar[1]}
  install -D -m 0644 -t "$root/usr/share/doc/xgrammar" "$sources/LICENSE" "$sources/NOTICE"
  for part in picojson dlpack; do
    install -D -m 0644 -t "$root/usr/share/doc/$part" "$sources/3rdparty/$part/LICENSE"
  done
fi
image_records ca-certificates

for model in ${models[@]+"${models[@]}"}; do
  target=$root/models/$(basename "$(readlink -f "$model")")
  mkdir "$target"
  find -L "$model" -maxdepth 1 -type f -exec install -m 0644 -t "$target" {} +
done

described=()
for model in ${models[@]+"${models[@]}"}; do described+=(--model "$root/models/$(basename "$(readlink -f "$model")")"); done
for library in ${libraries[@]+"${libraries[@]}"}; do described+=(--library "$library"); done
deploy/supply_chain/sbom.py --output "$root/usr/share/doc/eta-server/sbom.spdx.json" \
  ${xgrammar[@]+"${xgrammar[@]}"} ${described[@]+"${described[@]}"} "$binaries/eta-server" "$binaries/etactl"
deploy/supply_chain/provenance.py --output "$root/usr/share/doc/eta-server/provenance.json" \
  --build "$binaries/.." ${revision[@]+"${revision[@]}"} "$binaries/eta-server" "$binaries/etactl"
