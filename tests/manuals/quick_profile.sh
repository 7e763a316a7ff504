#!/usr/bin/env bash
# usage: quick_profile.sh NAME [DOMAIN]   stores a version of a profile, as a calibration does, within
# seconds: what a usual run has in place of the manuals' calibrations, which take minutes. Four short
# texts prove nothing, so it allows any loss.
set -euo pipefail
name=$1 domain=${2:-legal}
samples=$(mktemp -d)
trap 'rm -rf "$samples"' EXIT
count=0
for file in models/eta-27m/samples/"$domain"/*.txt; do
  [ $((count += 1)) -le 4 ] || break
  head -c 1400 "$file" >"$samples/$count.txt"
done
build/bin/etactl calibrate "$name" --samples "$samples" --sequence_tokens 256 \
  --target union-density=0.9 --allow_loss
