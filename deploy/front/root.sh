#!/usr/bin/env bash
# Collects into ROOT all that the front's image consists of: Debian's nginx, mtail, which counts what
# nginx refuses, the libraries that they load, a user, and the licences of it all. deploy/front/Dockerfile uses it, and
# tests/deploy/pod_test.py, which serves through such a root.
#   deploy/front/root.sh ROOT
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
# shellcheck source=deploy/image_parts.sh
. deploy/image_parts.sh

[ $# -eq 1 ] || {
  sed -n '5s/^# *//p' "$0" >&2
  exit 2
}
root=$1
image_folders
mkdir -p "$root"/{usr/sbin,etc/nginx,run}
ln -s usr/sbin "$root/sbin"
image_file /usr/sbin/nginx /usr/sbin/nginx
image_file /usr/bin/mtail /usr/bin/mtail
image_libraries /usr/sbin/nginx /usr/bin/mtail
image_user front /run
image_records nginx mtail
