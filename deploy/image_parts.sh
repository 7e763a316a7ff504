#!/usr/bin/env bash
# What the roots of all images have in common, for image_root.sh and the root.sh of others to source. $root is
# the folder of the image; image_sources collects which files of this machine are in it.
# shellcheck disable=SC2154 # root
image_uid=65532 # the number that distroless images use for "nonroot"
image_sources=()

# As Debian lays it out, /lib and /lib64 being links into /usr: the loader finds the usual folders
# without a cache, and a container runtime that injects a GPU driver recognises them.
image_folders() {
  [ ! -e "$root" ] || {
    echo "$(basename "$0"): $root exists" >&2
    exit 1
  }
  mkdir -p "$root"/{etc,tmp,usr/bin,usr/lib,usr/lib64,usr/share/doc,proc,sys,dev}
  mkdir -p "$root/var/lib/dpkg/status.d"
  ln -s usr/bin "$root/bin"
  ln -s usr/lib "$root/lib"
  ln -s usr/lib64 "$root/lib64"
  chmod 1777 "$root/tmp"
  cp /etc/debian_version "$root/etc/"
}

# image_file SOURCE TARGET: under the name that it is asked for, as a file and not as a link.
image_file() {
  local real
  [ ! -e "$root$2" ] || return 0
  real=$(readlink -f "$1")
  install -D -m 0755 "$real" "$root$2"
  # The package database may know a file of a merged /usr by either name.
  image_sources+=("$real" "${real#/usr}")
}

# image_libraries FILE...: what the loader gives them. Sets image_libraries_dir, where the C library is.
image_libraries() {
  local resolved path
  resolved=$(ldd "$@")
  if grep -F 'not found' <<<"$resolved" >&2; then
    echo "$(basename "$0"): libraries are missing" >&2
    exit 1
  fi
  while read -r path; do
    case "$path" in
      /lib/* | /lib64/*) image_file "$path" "/usr$path" ;;
      *) image_file "$path" "$path" ;;
    esac
  done < <(sed -nE 's/^\t([^ ]+ => )?(\/[^ ]+) \(0x.*/\2/p' <<<"$resolved" | sort -u)
  # shellcheck disable=SC2034 # of whoever sources this
  image_libraries_dir=$(dirname "$(sed -nE 's/.*libc\.so\.6 => ([^ ]+) .*/\1/p' <<<"$resolved" | head -n 1)")
}

# image_user NAME HOME: who runs in it.
image_user() {
  printf '%s\n' 'root:x:0:0:root:/:/sbin/nologin' "$1:x:$image_uid:$image_uid:$1:$2:/sbin/nologin" \
    >"$root/etc/passwd"
  printf '%s\n' 'root:x:0:' "$1:x:$image_uid:" >"$root/etc/group"
}

# image_records PACKAGE...: licences, and the records by which scanners know the packages that files
# came from; those of image_sources too.
image_records() {
  local package
  while read -r package; do
    if [ -e "/usr/share/doc/$package/copyright" ]; then
      install -D -m 0644 "/usr/share/doc/$package/copyright" "$root/usr/share/doc/$package/copyright"
    fi
    dpkg-query -s "$package" >"$root/var/lib/dpkg/status.d/$package"
  done < <({ printf '%s\n' "$@" && dpkg-query -S "${image_sources[@]}" 2>/dev/null | cut -d: -f1; } | sort -u)
}
