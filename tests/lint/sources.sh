#!/usr/bin/env bash
# What compilers let through and we do not, in the product's sources. A file is marked in its first
# line: "// lint: untrusted-input" (it reads what strangers wrote), "// lint: fuzz-covered" (the fuzz
# targets' corpora must reach it: tests/fuzz/coverage.sh), or both.
# - A product of sizes in a file that reads untrusted input may wrap around, so it goes through
#   engine/base/checked.h. One that cannot has "// cannot wrap: REASON" in the lines above it.
# - Functions that cannot be used safely, that start programs, or whose result is another tomorrow.
# - Hash tables of Abseil 20220623, which free what they never had when an allocation in them fails.
# - Assertions about input, which would end the process of everybody else's requests.
# - Functions that a unity build could take for each other (rooms.py).
# Recursion in those files is clang-tidy's (misc-no-recursion), alloca and arrays of variable length
# are the compiler's. Prints every line that breaks a rule.
#   sources.sh [--marked MARK]      --marked: prints the files with that mark
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."

folders=()
for folder in kernels engine calibration training service; do
  [ -d "$folder" ] && folders+=("$folder")
done
marked() {
  grep -rlE "^// lint: ([a-z-]+, )*$1(,|\$)" "${folders[@]}" --include='*.cc' --include='*.h' | sort
}
if [ "${1-}" = --marked ]; then
  marked "$2"
  exit
fi
mapfile -t readers < <(marked untrusted-input)
# Whoever reads a request or a file of somebody else's must not forget the mark.
expected=(service/identity/*_file.cc service/*/convert*.cc engine/checkpoint/*.cc)

broken=0
report() { # RULE LINES
  if [ -n "$2" ]; then
    printf 'sources: %s\n%s\n' "$1" "$2" >&2
    broken=1
  fi
}
code() { grep -vE '^[^:]+:[0-9]+:[[:space:]]*//' || true; }

report "files that read what strangers wrote, without the mark" "$(comm -13 \
  <(printf '%s\n' "${readers[@]}") \
  <(printf '%s\n' "${expected[@]}" | grep -vE '_writer\.cc$' | sort))"

# clang-format writes a product, and nothing else, with a space on both sides of its star. The
# compiler does not let a constant wrap around.
report "a product of sizes outside engine/base/checked.h (or say above it why it cannot wrap)" \
  "$(awk '
    FNR == 1 { excused = 0 }
    /^[[:space:]]*\/\// { if (/cannot wrap: [^ ]/) excused = 1; next }
    / \*=? / && !/^[[:space:]]*constexpr / && !excused { print FILENAME ":" FNR ": " $0 }
    /[;{}]$/ { excused = 0 }' "${readers[@]}")"

report "functions that are not used here" "$(grep -rnE \
  '\b(alloca|strcpy|strcat|strncpy|sprintf|vsprintf|gets|strtok|atoi|atol|atof|system|popen|execve?|execl|execvp?|posix_spawnp?|v?fork|tmpnam|mktemp|dlopen|rand|srand)\(' \
  "${folders[@]}" --include='*.cc' --include='*.h' --include='*.cu' --include='*.cuh' | code |
  grep -vE '^(kernels/cuda/[^:]+:[0-9]+:.*\bdlopen|engine/format/helper/[^:]+:[0-9]+:.*\bfork)\(' || true)"
report "a hash table that does not survive a failed allocation (take std::unordered_map)" \
  "$(grep -rnE 'absl/container/(flat|node)_hash' "${folders[@]}" || true)"
report "the time of the build (two builds of one commit are equal)" "$(grep -rnE \
  '__(DATE|TIME|TIMESTAMP)__' "${folders[@]}" --include='*.cc' --include='*.h' \
  --include='*.cu' --include='*.cuh' || true)"
report "assertions about input" "$(grep -nE '\b(assert|abort|std::terminate)\(' "${readers[@]}" |
  grep -v static_assert | code)"
report "functions that a unity build could take for each other (give one another name)" \
  "$(tests/lint/rooms.py 2>&1)"

if [ "$broken" -eq 0 ]; then echo "sources: in order"; fi
exit "$broken"
