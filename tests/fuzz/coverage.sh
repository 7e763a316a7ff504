#!/usr/bin/env bash
# How much of each parser the kept corpora reach: coverage.sh [--build=DIR] [--no-build] [--lines FILE]
# The bars are 95 % of lines and 90 % of branches; ends with 1 where one is missed.
set -euo pipefail
root=$(readlink -f "$(dirname "$(readlink -f "$0")")/../..")
build=$root/build/coverage make=1 lines=
while [ $# -gt 0 ]; do
  case "$1" in
    --build=*) build=${1#*=} ;;
    --no-build) make=0 ;;
    --lines)
      lines=$2
      shift
      ;;
    *)
      echo "usage: tests/fuzz/coverage.sh [--build=DIR] [--no-build] [--lines FILE]" >&2
      exit 2
      ;;
  esac
  shift
done
if [ "$make" -eq 1 ]; then
  . "$root/deploy/compiler_cache.sh" "$root"
  (cd "$root" && cmake --preset coverage -B "$build" >/dev/null)
  cmake --build "$build" --target fuzzers
fi

# Parsers of what strangers send and of files that others made, and what must hold in any order.
mapfile -t parsers < <("$root/tests/lint/sources.sh" --marked fuzz-covered)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
binaries=()
for source in "$root"/tests/fuzz/*_fuzz.cc; do
  name=$(basename "$source" _fuzz.cc)
  [ -x "$build/bin/${name}_fuzz" ] || continue
  mkdir "$work/$name"
  tar -xf "$root/tests/fuzz/corpus/$name.tar" -C "$work/$name"
  LLVM_PROFILE_FILE="$work/$name.profraw" "$build/bin/${name}_fuzz" -runs=0 -rss_limit_mb=1024 \
    "$work/$name" >"$work/log" 2>&1 || {
    tail -n 20 "$work/log"
    exit 1
  }
  binaries+=(-object "$build/bin/${name}_fuzz")
done
llvm-profdata-14 merge -sparse -o "$work/profile" "$work"/*.profraw

# Where the sources were when they were compiled. Through the compiler's cache they are named by ".."
# from the build folder, and llvm-cov then finds none by its name: it shows all, and we choose.
compiled=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$build/CMakeCache.txt")
if [ -n "$lines" ]; then
  llvm-cov-14 show -instr-profile="$work/profile" "${binaries[@]:1}" -show-branches=count |
    awk -v end="/$lines:" '/^\/.*:$/ { on = substr($0, length($0) - length(end) + 1) == end } on'
  exit 0
fi
llvm-cov-14 export -summary-only -instr-profile="$work/profile" "${binaries[@]:1}" \
  >"$work/summary.json"
python3 - "$work/summary.json" "$compiled" "${parsers[@]}" <<'PYTHON'
import json
import os.path
import sys

with open(sys.argv[1]) as summary:
    files = json.load(summary)["data"][0]["files"]
found = {os.path.relpath(os.path.normpath(f["filename"]), sys.argv[2]): f["summary"] for f in files}
missed = 0
print(f"{'file':44} {'lines':>12} {'%':>6} {'branches':>12} {'%':>6}")
for name in sorted(sys.argv[3:]):
    cells = [name]
    short = False
    for kind, bar in (("lines", 95.0), ("branches", 90.0)):
        of = found[name][kind]
        percent = 100.0 * of["covered"] / of["count"] if of["count"] else 100.0
        short |= percent < bar
        cells += [f"{of['covered']}/{of['count']}", f"{percent:.1f}"]
    missed += short
    print("{:44} {:>12} {:>6} {:>12} {:>6}".format(*cells), "  below the bar" if short else "")
sys.exit(1 if missed else 0)
PYTHON
