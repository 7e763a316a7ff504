#!/usr/bin/env bash
# What compilers let through and we do not, in the product's sources:
# - a product of sizes in files that read what strangers wrote: it may wrap around, so it goes
#   through engine/base/checked.h. Those that cannot are in multiplications.txt, each with its reason.
# - functions that cannot be used safely, that start programs, or whose result is another tomorrow.
# - hash tables of Abseil 20220623, which free what they never had when an allocation in them fails.
# - assertions about input, which would end the process of everybody else's requests.
# Recursion in those files is clang-tidy's (misc-no-recursion), alloca and arrays of variable length
# are the compiler's. Prints every line that breaks a rule.
#   sources.sh [--readers]      --readers: prints which files read what strangers wrote
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
listed=tests/lint/multiplications.txt

readers=()
for file in engine/{checkpoint,input_file,json_check,model_config,piece_model,piece_table}.cc \
  engine/{request_validation,safetensors,safetensors_header,tokenizer,utf8}.cc \
  calibration/{json_fields,profile_blob,profile_json,profile_record,threshold_profile_of}.cc \
  calibration/store/{page_token,profile_folder}.cc service/convert*.cc service/identity/*.cc \
  service/limits/limits_file.cc service/wire/trace_context.cc; do
  [ -e "$file" ] || {
    echo "sources: $file is not there; has it another name now?" >&2
    exit 1
  }
  readers+=("$file")
done
if [ "${1-}" = --readers ]; then
  printf '%s\n' "${readers[@]}"
  exit
fi
folders=()
for folder in kernels engine calibration service; do
  [ -d "$folder" ] && folders+=("$folder")
done

broken=0
report() { # RULE LINES
  if [ -n "$2" ]; then
    printf 'sources: %s\n%s\n' "$1" "$2" >&2
    broken=1
  fi
}
code() { grep -vE '^[^:]+:[0-9]+:[[:space:]]*//' || true; }

# clang-format writes a product, and nothing else, with a space on both sides of its star. The
# compiler does not let a constant wrap around.
products=$(grep -nE ' \*=? ' "${readers[@]}" /dev/null | code | grep -vE ':[0-9]+:[[:space:]]*constexpr ' |
  sed -E 's#^([^:]+):[0-9]+:[[:space:]]*#\1: #; s#[[:space:]]+//.*##' | sort -u)
allowed=$({ grep -vE '^(#|$)' "$listed" || true; } | sed -E 's#[[:space:]]+\|\|.*##' | sort -u)
report "a product of sizes outside engine/base/checked.h (or list it in $listed, with the reason)" \
  "$(comm -23 <(echo "$products") <(echo "$allowed"))"
report "$listed has lines that are not in the sources any more" \
  "$(comm -13 <(echo "$products") <(echo "$allowed"))"
report "$listed has lines without a reason" \
  "$(grep -vE '^(#|$)|[[:space:]]\|\|[[:space:]]+[^ ]' "$listed" || true)"

report "functions that are not used here" "$(grep -rnE \
  '\b(alloca|strcpy|strcat|strncpy|sprintf|vsprintf|gets|strtok|atoi|atol|atof|system|popen|execve?|execl|execvp?|posix_spawnp?|v?fork|tmpnam|mktemp|dlopen|rand|srand)\(' \
  "${folders[@]}" --include='*.cc' --include='*.h' --include='*.cu' --include='*.cuh' | code |
  grep -vE '^kernels/cuda/[^:]+:[0-9]+:.*\bdlopen\(' || true)"
report "a hash table that does not survive a failed allocation (take std::unordered_map)" \
  "$(grep -rnE 'absl/container/(flat|node)_hash' "${folders[@]}" || true)"
report "the time of the build (two builds of one commit are equal)" "$(grep -rnE \
  '__(DATE|TIME|TIMESTAMP)__' "${folders[@]}" --include='*.cc' --include='*.h' \
  --include='*.cu' --include='*.cuh' || true)"
report "assertions about input" "$(grep -nE '\b(assert|abort|std::terminate)\(' "${readers[@]}" |
  grep -v static_assert | code)"

if [ "$broken" -eq 0 ]; then echo "sources: in order"; fi
exit "$broken"
