#!/usr/bin/env bash
# Proof that tests can fail: takes one defence after the other out of a copy of the sources
# (mutants/*.patch) and checks that the tests that are there for it notice.
#
# usage: tests/mutants.sh [FOLDER [NAME...]]   FOLDER (default build/mutants) is kept, for the next run
#        tests/mutants.sh --check              only whether every patch still fits the sources
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "$0")")")
unfit=0
for patch in "$root"/tests/mutants/*.patch; do
  if ! patch --dry-run --quiet --directory="$root" -p1 --input="$patch"; then
    echo "mutants: $(basename "$patch") does not fit the sources any more" >&2
    unfit=$((unfit + 1))
  fi
done
if [ "$unfit" -gt 0 ]; then exit 1; fi
if [ "${1-}" = --check ]; then exit; fi
folder=$(mkdir -p "${1:-$root/build/mutants}" && readlink -f "${1:-$root/build/mutants}")
if [ $# -gt 0 ]; then shift; fi
source="$folder/source" build="$folder/source/build" log="$folder/log"

# With their times, so that what did not change is not built again; but for a file that a run left
# patched when it was killed.
mkdir -p "$source"
tar -C "$root" --exclude=./.git --exclude=./build --exclude=./models -cf - . | tar -C "$source" -xf -
ln -sfn "$root/models" "$source/models"
if [ -e "$folder/patched" ]; then
  sed -n 's,^+++ b/,,p' "$folder/patched" | (cd "$source" && xargs touch)
  rm "$folder/patched"
fi
. "$root/deploy/compiler_cache.sh" "$source"
# Each source by itself: a mutant is one source, and so is what is built anew for it.
(cd "$source" && cmake --preset ci -DETA_UNITY=OFF -DETA_CUDA=OFF -DETA_TESTS=ON) \
  >"$log" 2>&1 || { cat "$log" && exit 1; }

field() { sed -n "s/^$1: //p" "$2"; }
make_test() {
  cmake --build "$build" --parallel "$(nproc)" --target "$1" >"$log" 2>&1 ||
    { tail -n 30 "$log" && return 1; }
}
run_test() { timeout 600 "$build/tests/$1" --gtest_filter="$2" >"$log" 2>&1; }

patches=()
if [ $# -gt 0 ]; then
  for name in "$@"; do patches+=("$root/tests/mutants/$name.patch"); done
else
  patches=("$root"/tests/mutants/*.patch)
fi
failures=0
for patch in "${patches[@]}"; do
  name=$(basename "$patch" .patch) target=$(field Target "$patch") tests=$(field Tests "$patch")
  make_test "$target"
  # Without the patch it passes, and there is something to pass.
  if ! run_test "$target" "$tests" || ! grep -q '^\[  PASSED  \] [1-9]' "$log"; then
    echo "$name: $tests does not pass without it"
    grep -E '^\[  FAILED|: Failure$' "$log" | head -n 10 || tail -n 10 "$log"
    failures=$((failures + 1))
    continue
  fi
  cp "$patch" "$folder/patched"
  patch --quiet --no-backup-if-mismatch --directory="$source" -p1 --input="$patch"
  verdict="NOT NOTICED by"
  if make_test "$target"; then
    if ! run_test "$target" "$tests"; then verdict="noticed by"; fi
  else
    verdict="does not build:"
  fi
  patch --quiet --no-backup-if-mismatch --directory="$source" -p1 --reverse --input="$patch"
  rm "$folder/patched"
  echo "$name: $verdict $tests"
  if [ "$verdict" != "noticed by" ]; then failures=$((failures + 1)); fi
done
echo "${#patches[@]} mutants, $failures not noticed"
[ "$failures" -eq 0 ]
