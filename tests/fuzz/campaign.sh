#!/usr/bin/env bash
# Builds the fuzz targets with clang and runs them: campaign.sh --runs=10000000 safetensors_header
set -euo pipefail
root=$(readlink -f "$(dirname "$(readlink -f "$0")")/../..")

usage() {
  cat <<'TEXT'
usage: tests/fuzz/campaign.sh [options] [TARGET...]     (without names: all targets)
  --seconds=S    so long each (default 60)
  --runs=N       instead: so many executions each
  --parallel=P   targets at a time (default 2)
  --timeout=S    an input that takes longer is a failure (default 1)
  --build=DIR    build folder (default build/fuzz); --no-build takes the binaries that are there
An input that crashes, leaks, hangs or takes over 256 MB (384 of templates) is kept in
DIR/artifacts/TARGET and named; the script goes on and ends with 1. What is found on the way stays
in DIR/corpus/TARGET; minimise.sh puts what is worth it into the repository.
TEXT
}

seconds=60 runs=-1 parallel=2 timeout=1 build=$root/build/fuzz make=1
targets=()
for argument in "$@"; do
  case "$argument" in
    --seconds=*) seconds=${argument#*=} ;;
    --runs=*) runs=${argument#*=} seconds=0 ;;
    --parallel=*) parallel=${argument#*=} ;;
    --timeout=*) timeout=${argument#*=} ;;
    --build=*) build=${argument#*=} ;;
    --no-build) make=0 ;;
    -h | --help)
      usage
      exit 0
      ;;
    -*)
      usage >&2
      exit 2
      ;;
    *) targets+=("$argument") ;;
  esac
done
if [ ${#targets[@]} -eq 0 ]; then
  for source in "$root"/tests/fuzz/*_fuzz.cc; do targets+=("$(basename "$source" _fuzz.cc)"); done
fi

if [ "$make" -eq 1 ]; then
  . "$root/deploy/compiler_cache.sh" "$root"
  (cd "$root" && cmake --preset fuzz -B "$build" >/dev/null)
  cmake --build "$build" --target "${targets[@]/%/_fuzz}"
fi

# Memory that was freed is kept aside by AddressSanitizer, so that late uses are seen. A megabyte is
# more than an input frees and stays in the processor's cache; this and short stacks give up to a
# half more executions. A find says more when its input is given to the target by itself.
export ASAN_OPTIONS="quarantine_size_mb=1:thread_local_quarantine_size_kb=64:max_malloc_fill_size=0:\
malloc_context_size=1:${ASAN_OPTIONS-}"
export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS-}"

options_of() {
  local dictionary="$root/tests/fuzz/dictionaries/$1.dict"
  if [ -f "$dictionary" ]; then echo "-dict=$dictionary"; fi
  case "$1" in
    backends) echo -max_len=256 ;;
    scheduler) echo -max_len=512 ;;
    profile_names) echo -max_len=1024 ;; # four names of 255 bytes at most
    # The smallest whole GGUF file takes 3,500 bytes; and without weights of inputs more are run.
    checkpoint) printf '%s\n' -max_len=4096 -entropic=0 ;;
    tokenizer_text) echo -max_len=512 ;; # five times the size at which its algorithm changes
    answer_reader | text_stream) echo -max_len=4096 ;;
    # A text of the 64 MiB that a template may hold is twice there while it grows.
    chat_template) printf '%s\n' -max_len=8192 -rss_limit_mb=384 ;;
    *) echo -max_len=8192 ;;
  esac
}

run_one() {
  local name=$1 found=$build/corpus/$1 bad=$build/artifacts/$1 kept=$build/kept/$1 options
  mkdir -p "$found" "$bad" "$kept" "$build/logs"
  tar -xf "$root/tests/fuzz/corpus/$name.tar" -C "$kept"
  mapfile -t options < <(options_of "$name")
  "$build/bin/${name}_fuzz" -timeout="$timeout" -rss_limit_mb=256 "${options[@]}" \
    -max_total_time="$seconds" -runs="$runs" -print_final_stats=1 -artifact_prefix="$bad/" \
    "$found" "$kept" >"$build/logs/$name.log" 2>&1
}

statistic() { sed -n "s/^stat::$2: *//p" "$build/logs/$1.log" | tail -n 1; }
row() {
  local log=$build/logs/$1.log
  printf '%-20s %12s %8s %8s %9s %7s %6s  %s\n' "$1" "$(statistic "$1" number_of_executed_units)" \
    "$(statistic "$1" average_exec_per_sec)" "$(statistic "$1" peak_rss_mb)" \
    "$(statistic "$1" slowest_unit_time_sec)" \
    "$(grep -oE 'cov: [0-9]+' "$log" | tail -n 1 | cut -d' ' -f2)" \
    "$(grep -oE 'corp: [0-9]+' "$log" | tail -n 1 | cut -d' ' -f2)" "$2"
}

failed=0
declare -A process_of=()
report() {
  local name=$1 result=ok
  if ! wait "${process_of[$name]}"; then
    result=FAILED failed=1
  fi
  row "$name" "$result"
  if [ "$result" = FAILED ]; then
    grep -E 'ERROR|SUMMARY|runtime error|Test unit written|libFuzzer: (timeout|out-of-memory)' \
      "$build/logs/$name.log" | sed 's/^/    /' || true
    local input
    input=$(sed -n 's/.*Test unit written to //p' "$build/logs/$name.log" | tail -n 1)
    if [ -f "$input" ]; then head -c 256 "$input" | od -An -c | head -n 16; fi
  fi
}

printf '%-20s %12s %8s %8s %9s %7s %6s\n' target executions exec/s 'peak MB' 'slowest s' coverage \
  inputs
running=()
for name in "${targets[@]}"; do
  if [ ${#running[@]} -ge "$parallel" ]; then
    report "${running[0]}"
    running=("${running[@]:1}")
  fi
  run_one "$name" &
  process_of[$name]=$!
  running+=("$name")
done
for name in "${running[@]}"; do report "$name"; done
exit "$failed"
