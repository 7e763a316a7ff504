#!/usr/bin/env bash
# Whether binaries have what they are built with against intruders, as far as a file shows it. Part
# of building an image, and of the tests.
#   deploy/check_binaries.sh [--failpoints] BINARY...
# --failpoints: built for tests, with the places where these make it fail; never shipped.
# Not asked for, because no program of Debian 12 can have it: the note that the processor's shadow
# stack and branch tracking be enforced, which the C library's start files lack. The code has the
# landing points for it, which is asked for.
set -euo pipefail

failpoints=0
if [ "${1-}" = --failpoints ]; then
  failpoints=1
  shift
fi
[ $# -gt 0 ] || {
  sed -n '4s/^# *//p' "$0" >&2
  exit 2
}

bad=0
for binary in "$@"; do
  wants() { # WHAT COMMAND...
    local what=$1
    shift
    "$@" || {
      echo "check_binaries: $(basename "$binary"): $what" >&2
      bad=1
    }
  }
  dynamic=$(readelf -Wd "$binary")
  segments=$(readelf -Wl "$binary")
  symbols=$(readelf -W --dyn-syms "$binary")
  has() { grep -qE -- "$2" <<<"$1"; }
  # shellcheck disable=SC2317 # called by wants
  lacks() { ! has "$@"; }

  wants "is no position-independent program" has "$dynamic" 'FLAGS_1.*\bPIE\b'
  wants "relocations stay writable (no RELRO)" has "$segments" 'GNU_RELRO'
  wants "symbols are bound late (no BIND_NOW)" has "$dynamic" '\(FLAGS\).*\bBIND_NOW\b|FLAGS_1.*\bNOW\b'
  wants "has an executable stack" has "$segments" 'GNU_STACK( +0x[0-9a-f]+)+ RW  '
  wants "has memory that is writable and executable" lacks "$segments" ' RWE '
  wants "has relocations in code" lacks "$dynamic" '\(TEXTREL\)'
  wants "looks for libraries in a folder of its own (RPATH)" lacks "$dynamic" '\((RPATH|RUNPATH)\)'
  wants "has no stack protector" has "$symbols" ' __stack_chk_fail@'
  wants "has no checked string functions (_FORTIFY_SOURCE)" has "$symbols" ' __(mem|str|v?sn?printf|v?fprintf)[a-z]*_chk@'
  wants "has no checked indices (_GLIBCXX_ASSERTIONS)" has "$symbols" 'glibcxx_assert_fail'
  wants "has a sanitizer's runtime" lacks "$symbols" ' __(asan|tsan|ubsan|msan)_'
  wants "names the folder that it was built in" lacks "$(strings -a "$binary")" \
    "^($(cd "$(dirname "$0")/.." && pwd)|$(cd "$(dirname "$binary")/.." && pwd))/[A-Za-z]"
  wants "runs with rights of its owner" test ! -u "$binary" -a ! -g "$binary"
  if has "$(readelf -h "$binary")" 'X86-64'; then
    # Functions whose address is taken begin with endbr64; a binary without them has a few dozen,
    # from the C library's start files.
    points=$(LC_ALL=C grep -aoP '\xf3\x0f\x1e\xfa' "$binary" | wc -l)
    wants "has only $points landing points of indirect branches" test "$points" -ge 500
  fi
  if [ "$failpoints" -eq 0 ]; then
    wants "has failpoints" lacks "$(strings -a "$binary")" 'ETA_FAILPOINTS|FailpointStrikes'
  fi
done

if [ "$bad" -eq 0 ]; then echo "check_binaries: $# in order"; fi
exit "$bad"
