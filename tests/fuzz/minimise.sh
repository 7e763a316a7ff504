#!/usr/bin/env bash
# Replaces kept corpora by the smallest that reach what they and the inputs found by campaign.sh
# reach: minimise.sh [--build=DIR] [TARGET...]. Inputs that have a name, not a digest, always stay:
# they may guard against more than they cover.
set -euo pipefail
root=$(readlink -f "$(dirname "$(readlink -f "$0")")/../..")
build=$root/build/fuzz
targets=()
for argument in "$@"; do
  case "$argument" in
    --build=*) build=${argument#*=} ;;
    -*)
      echo "usage: tests/fuzz/minimise.sh [--build=DIR] [TARGET...]" >&2
      exit 2
      ;;
    *) targets+=("$argument") ;;
  esac
done
if [ ${#targets[@]} -eq 0 ]; then
  for source in "$root"/tests/fuzz/*_fuzz.cc; do targets+=("$(basename "$source" _fuzz.cc)"); done
fi

for name in "${targets[@]}"; do
  corpus=$root/tests/fuzz/corpus/$name.tar
  kept=$(mktemp -d)
  small=$(mktemp -d)
  mkdir -p "$build/corpus/$name"
  if [ -f "$corpus" ]; then tar -xf "$corpus" -C "$kept"; fi
  # Of inputs that reach the same edges, however often, the smallest is taken.
  "$build/bin/${name}_fuzz" -merge=1 -use_counters=0 -max_len=8192 -rss_limit_mb=1024 "$small" "$kept" \
    "$build/corpus/$name" >"$small.log" 2>&1 || {
    tail -n 20 "$small.log"
    exit 1
  }
  named=" $(find "$kept" -type f ! -regex '.*/[0-9a-f]*' -exec sha1sum {} + | cut -d' ' -f1 |
    tr '\n' ' ')"
  find "$kept" -type f -regex '.*/[0-9a-f]*' -delete
  for file in "$small"/*; do
    digest=$(basename "$file")
    if [[ $named != *" $digest "* ]]; then cp "$file" "$kept/${digest:0:12}"; fi
  done
  # The same inputs make the same file.
  (cd "$kept" && tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --mode=644 \
    -cf "$corpus" -- *)
  echo "$name: $(find "$kept" -type f | wc -l) inputs, $(stat -c %s "$corpus") bytes"
  rm -rf "$small" "$small.log" "$kept"
done
