#!/usr/bin/env bash
# Builds everything and runs every check, on a fresh Debian 12 or on a developer's machine.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

usage() {
  cat <<'TEXT'
usage: tests/run.sh [--quick] [--cuda] [--tidy] [--asan] [--tsan] [--long]
  (nothing)  shell and layer checks, format, build with -Werror, all tests
  --quick    the same without the suites that start servers or replay golden numbers
  --cuda     instead: what needs a CUDA device, and compute-sanitizer over some of it (cuda.sh);
             without a device the other runs build it all, and its tests skip and say why
  --tidy     instead: clang-tidy over all sources of the build (.clang-tidy), minutes long
  --asan     instead: AddressSanitizer and UndefinedBehaviorSanitizer, in build/asan
  --tsan     instead: ThreadSanitizer, in build/tsan, over all that has no gRPC in it
  --long     the default run with more rounds, and images built; then half an hour of soak beside a
             minute of each fuzz target and the mutants (RESULTS.md has the time of each part). Not in
             it: --tidy, --asan, --tsan, --cuda, which are runs of their own
A release passes --long, --tidy, --asan and --tsan, and --cuda where there is a device. They may be
named together, and then run one after the other. A failed test does not keep later parts from
running; the run then ends with 1 all the same. A test that is skipped for a reason that
tests/skips.txt does not know fails its run.
TEXT
}

default_run=1 cuda=0 tidy=0 asan=0 tsan=0 quick=0 long=0
for argument in "$@"; do
  case "$argument" in
    --quick) quick=1 ;;
    --cuda) cuda=1 default_run=0 ;;
    --tidy) tidy=1 default_run=0 ;;
    --asan) asan=1 default_run=0 ;;
    --tsan) tsan=1 default_run=0 ;;
    --long) long=1 ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      usage >&2
      exit 2
      ;;
  esac
done
if [ "$long" -eq 1 ]; then default_run=1; fi

jobs=$(nproc)
phases=() failed=()
# part NAME COMMAND...: runs it and keeps its time. What comes after it runs whether it fails or not;
# the script then ends with 1.
part() {
  local name=$1 start=$SECONDS
  shift
  echo "== $name"
  if ! "$@"; then
    echo "== FAILED: $name, after $((SECONDS - start)) s" >&2
    failed+=("$name")
  fi
  phases+=("$(printf '%5d s  %s' $((SECONDS - start)) "$name")")
}
# phase NAME COMMAND...: one that the rest needs.
phase() {
  local before=${#failed[@]}
  part "$@"
  if [ ${#failed[@]} -gt "$before" ]; then exit 1; fi
}

sources() {
  find kernels engine calibration training service tests \
    \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -print0
}
check_format() {
  sources | xargs -0 clang-format --dry-run -Werror >"$log" 2>&1 && return 0
  echo "not formatted (clang-format -i FILE):"
  grep -oE '^[^: ]+\.(h|cc|cu|cuh):[0-9]+:' "$log" | cut -d: -f1 | sort -u
  return 1
}

check_shell() {
  find deploy tests .ci -type f \( -name '*.sh' -o -path '.ci/*' \) -print0 | xargs -0 shellcheck
}

# Formats of answers are built where their library can be had; else their tests skip and say why.
grammar=OFF
fetch_grammar() {
  if deploy/fetch_xgrammar.sh; then grammar=ON; fi
}

configure() {
  cmake --preset "$1" -DETA_WERROR=ON -DETA_TESTS=ON -DETA_GRAMMAR="$grammar" >"$log" 2>&1 ||
    { cat "$log" && return 1; }
}

# build DIRECTORY CMAKE_OPTION...
build() { "${runner[@]}" cmake --build "$@" --parallel "$jobs"; }

# Highway's sources are read for one instruction set, not for each.
check_tidy() {
  local files
  files="^$PWD/(calibration|engine|kernels|service|tests|training)/.*\.cc\$"
  local readers
  mapfile -t readers < <(tests/lint/sources.sh --marked untrusted-input | sed "s,.*,^$PWD/&\$,")
  run-clang-tidy -p build/tidy -j "$jobs" -quiet -extra-arg=-DHWY_COMPILE_ONLY_STATIC "$files" \
    >"$log" 2>&1 &&
    run-clang-tidy -p build/tidy -j "$jobs" -quiet -checks='-*,misc-no-recursion' "${readers[@]}" \
      >"$log" 2>&1 && closing+=("clang-tidy: no findings") && return 0
  sed 's/\x1b\[[0-9;]*m//g' "$log" | grep -E ': (warning|error): ' | sort -u || tail -n 20 "$log"
  return 1
}

check_cuda() { tests/cuda.sh && closing+=("CUDA: suites passed, compute-sanitizer clean"); }

# suites DIRECTORY CTEST_OPTION...
suites() {
  local directory=$1
  shift
  # With all that tests say: why they were skipped is in it.
  local results=$PWD/$directory/results.xml skipped
  "${runner[@]}" ctest --test-dir "$directory" --output-on-failure --no-label-summary -j2 "$@" \
    --output-junit "$results" --test-output-size-passed 1048576 --test-output-size-failed 1048576 |
    tee "$log" || return 1
  skipped=$(tests/skips.py "$results") || return 1
  closing+=("$(grep 'tests passed' "$log")" ${skipped:+"$skipped"})
}

# On one core: 80 % of what that can do, and the other for what runs beside it.
start_soak() {
  local core
  core=$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')
  taskset -c "$core" build/bin/soak --model=models/eta-27m --seconds=1800 --streams=32 >build/soak.log 2>&1 &
  soak=$!
}
await_soak() {
  wait "$soak" && closing+=("soak: $(tail -n 1 build/soak.log)") && return 0
  cat build/soak.log
  return 1
}

log=$(mktemp) soak="" closing=()
trap 'rm -f "$log"; if [ -n "$soak" ]; then kill "$soak" 2>/dev/null || true; fi' EXIT
runner=(env)

sections=(runtime build test)
if [ "$tidy" -eq 1 ]; then sections+=(tidy); fi
if [ $((long + asan + tsan)) -gt 0 ]; then sections+=(clang); fi
phase "packages" deploy/install_packages.sh "${sections[@]}"
. deploy/compiler_cache.sh "$PWD"
phase "sources of xgrammar" fetch_grammar

if [ "$default_run" -eq 1 ]; then
  phase "layers" tests/layers.sh
  phase "sources" tests/lint/sources.sh
  phase "figures" tests/lint/figures.py
  phase "links" tests/lint/links.py
  phase "bad inputs" tests/bad_inputs.py --check
  phase "manuals marked" tests/manuals/run_manual.py --check
  phase "mutants fit" tests/mutants.sh --check
  phase "shell scripts" check_shell
  phase "format" check_format
  phase "configure" configure ci
  phase "build" build build
  if [ "$quick" -eq 1 ]; then
    part "tests (quick)" suites build -LE '^(golden|service_test|server_binary|integration)|_process_test$'
  else
    # Randomized tests repeat themselves more often in a long run, without sanitizers.
    if [ "$long" -eq 1 ]; then export ETA_TEST_LONG=1; fi
    part "tests" suites build
    unset ETA_TEST_LONG
  fi
fi
if [ "$long" -eq 1 ]; then
  # The soak looks for what does not come back, not for speed.
  phase "soak begins" start_soak
  # An input that takes long may do so because the machine is busy.
  part "fuzz" tests/fuzz/campaign.sh --seconds=60 --parallel=1 --timeout=10
  part "mutants" tests/mutants.sh
  part "soak" await_soak
fi
if [ "$cuda" -eq 1 ]; then
  phase "configure" configure ci
  phase "build" build build
  part "tests on a CUDA device" check_cuda
fi
if [ "$tidy" -eq 1 ]; then
  phase "configure, tidy" configure tidy
  # It reads headers that the build generates.
  phase "generated headers" build build/tidy --target eta_proto
  part "clang-tidy" check_tidy
fi
if [ "$asan" -eq 1 ]; then
  phase "configure, asan" configure asan
  phase "build, asan" build build/asan
  # Left out: two suites of plain arithmetic over the whole model, minutes long here, and the soak
  # and the monitoring test, whose calls have deadlines; the code that they run is covered by the
  # others.
  part "tests, asan" suites build/asan -E 'GoldenModelReference|EmbeddedModel|^soak$|^monitoring_test$'
fi
if [ "$tsan" -eq 1 ]; then
  # The runtime of this compiler cannot map its shadow under high-entropy address randomisation.
  if setarch --addr-no-randomize true 2>/dev/null; then runner=(setarch --addr-no-randomize); fi
  export TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp ${TSAN_OPTIONS-}"
  # Suites without gRPC: the packaged library is not instrumented, and what it orders looks like races.
  threads='^(kernels|workers|engine|shadow|calibrat|evaluation|diagnostics|training|prompt|tokenizer|chat_template|gguf|checkpoint'
  threads+='|limits|telemetry|profile_(record|store)|identity_parts|service_threads)'
  phase "configure, tsan" configure tsan
  mapfile -t targets < <(cmake --build build/tsan --target help | grep -oE "${threads}[a-z_]*_test: phony" | cut -d: -f1)
  phase "build, tsan" build build/tsan --target "${targets[@]}"
  part "tests, tsan" suites build/tsan -L "$threads" -E EmbeddedModel
fi

echo "== times"
printf '%s\n' "${phases[@]}"
printf '%5d s  in all\n' "$SECONDS"
echo "== result"
printf '%s\n' "${closing[@]}" "${failed[@]/#/FAILED: }"
[ ${#failed[@]} -eq 0 ]
