#!/usr/bin/env bash
# Collects into ROOT all that the gateway's image consists of: SMG of PyPI, by the digests of
# requirements.txt, and of Debian's Python the interpreter and its modules in Python, CA
# certificates, a user, the licences of it all. deploy/gateway/Dockerfile uses it, and
# tests/deploy/gateway_pod_test.py, which runs such a root.
#   deploy/gateway/root.sh ROOT
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
# shellcheck source=deploy/image_parts.sh
. deploy/image_parts.sh

[ $# -eq 1 ] || {
  sed -n '6s/^# *//p' "$0" >&2
  exit 2
}
root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
image_folders
mkdir -p "$root"/{etc/ssl/certs,usr/lib/smg,usr/lib/gateway,usr/share/doc/smg}

# Modules in C only of the interpreter's own package: no others are imported, and they would bring
# their libraries.
python=(python3.11-minimal libpython3.11-minimal libpython3.11-stdlib)
interpreter=$(dpkg-query -L libpython3.11-minimal)
while read -r file; do
  case "$file" in
    /usr/share/* | */__pycache__/*) ;;
    */lib-dynload/*)
      if grep -qxF "$file" <<<"$interpreter"; then install -D -m 0644 "$file" "$root$file"; fi
      ;;
    /usr/bin/* | /usr/lib/* | /etc/*)
      if [ -f "$file" ] && [ ! -L "$file" ]; then install -D -m "$(stat -c %a "$file")" "$file" "$root$file"; fi
      ;;
  esac
done < <(dpkg-query -L "${python[@]}" | sort -u)
ln -s python3.11 "$root/usr/bin/python3"

/usr/bin/python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --timeout 30 --retries 2 --no-compile \
  --only-binary :all: --no-deps --require-hashes -r deploy/gateway/requirements.txt --target "$root/usr/lib/smg"
rm -rf "$root/usr/lib/smg/bin"
find "$root/usr/lib/smg" -type d -exec chmod 0755 {} +
find "$root/usr/lib/smg" -type f -exec chmod 0644 {} +
install -m 0644 "$root"/usr/lib/smg/smg-*.dist-info/licenses/LICENSE "$root/usr/share/doc/smg/"
install -m 0644 deploy/gateway/start.py "$root/usr/lib/gateway/"
mapfile -t modules < <(find "$root/usr/lib/smg" "$root/usr/lib/python3.11/lib-dynload" -name '*.so')
image_libraries /usr/bin/python3.11 "${modules[@]}"

install -m 0644 /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
image_user gateway /tmp
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
image_records ca-certificates "${python[@]}"
