#!/usr/bin/env bash
# Runs what needs a CUDA device, from the root of the source tree: the suites on the cuda backend,
# then a choice of them under compute-sanitizer.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tests/cuda.sh [--suites | --sanitizer] [--tools=NAMES] [--batches=N] BINARY...
  --suites     only the suites
  --sanitizer  only compute-sanitizer
  --tools      of compute-sanitizer (memcheck,racecheck,initcheck,synccheck)
  --batches    random ragged batches to compare with the reference (1000)
  BINARY       test binaries: kernels_test, kernels_cuda_test, golden_decode_test,
               golden_model_test, engine_test, speculation_test, nth_failure_test; those in
               build/tests if none is named
TEXT
}

suites=1 sanitizer=1 batches=1000 tools=memcheck,racecheck,initcheck,synccheck
binaries=()
for argument in "$@"; do
  case "$argument" in
    --suites) sanitizer=0 ;;
    --sanitizer) suites=0 ;;
    --tools=*) tools=${argument#*=} ;;
    --batches=*) batches=${argument#*=} ;;
    -h | --help)
      usage
      exit 0
      ;;
    -*)
      usage >&2
      exit 2
      ;;
    *) binaries+=("$argument") ;;
  esac
done
if [ ${#binaries[@]} -eq 0 ]; then
  for name in kernels kernels_cuda golden_decode golden_model engine speculation nth_failure; do
    binaries+=("build/tests/${name}_test")
  done
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=0
# run NAME COMMAND...: a line with the time and what GoogleTest or the sanitizer counted; what failed
# in full.
run() {
  local name=$1 start=$SECONDS status=0
  shift
  "$@" >"$log" 2>&1 || status=$?
  if grep -q '^\[ RUN' "$log" && grep -q '^backend: cuda: ' "$log"; then
    echo "no test can run: $(grep -m 1 '^backend: cuda: ' "$log")" >&2
    exit 1
  fi
  printf '%5d s  %s: %s\n' $((SECONDS - start)) "$name" \
    "$(grep -E '^\[  (PASSED|SKIPPED|FAILED)  ?\] [0-9]|ERROR SUMMARY|RACECHECK SUMMARY' "$log" | tr -s ' =\n' ' ')"
  if [ "$status" -ne 0 ]; then
    failed=1
    grep -vE '^\[ +(RUN|OK|SKIPPED) |: Skipped$' "$log" | head -n 120
    echo "$name: exit status $status"
  fi
}

# Int8 weights, which this backend has not, skip. Engine suites that compare answers bit for bit are
# left out: on a GPU the last bits depend on the size of a step.
if [ "$suites" -eq 1 ]; then
  for binary in "${binaries[@]}"; do
    run "$(basename "$binary"), cuda" env ETA_CUDA_BATCHES="$batches" "$binary" \
      --gtest_filter='*cuda_*:*Cuda*:GreedyText.*:Golden*Files.*'
    run "$(basename "$binary"), engine on cuda" env ETA_TEST_BACKEND=cuda "$binary" \
      --gtest_filter='EngineTest.*:Pipeline.*:Prefill.*:CacheFormats.*:FileFormats.*:*ServedFamilies.*:NthFailpoint.*Device*:*SpeculationOnADevice*'
  done
fi

if [ "$sanitizer" -eq 1 ]; then
  filter='*RaggedStep.MatchesTheReference/cuda_*_?:*Selection.*/cuda_float32:*PointwiseOn.*/cuda_*'
  filter+=':*SamplingOn.DrawsTheReferences*/cuda_float32:*GoldenDecode.*/cuda_*:CudaRaggedBatches.*'
  filter+=':CudaRouting.*:*/CudaExperts.AReplayed*'
  filter+=':*/CudaAppend.*_d64_b64:*/CudaAppend.*_d96_b16:*/CudaFloat8Cache.*'
  filter+=':*/CudaScreenShapes.*/d64_kv3:*/CudaScreenShapes.*/d96_kv4:*/CudaScreenShapes.*/d128_kv2'
  for tool in ${tools//,/ }; do
    # racecheck keeps 3 GB of host memory per step of a graph. The model's padded rows hold what they
    # hold (Backend::PaddedRows).
    graphs=':CudaGraphs.*BFloat16*:Pipeline.SixStreams*:Pipeline.WhoComesOrGoes*'
    if [ "$tool" = initcheck ]; then graphs=; fi
    for binary in "${binaries[@]}"; do
      tests=$("$binary" --gtest_list_tests --gtest_filter="$filter$graphs")
      grep -q '^  ' <<<"$tests" || continue
      run "$(basename "$binary"), $tool" \
        env ETA_TEST_BACKEND=cuda ETA_CUDA_BATCHES=3 ETA_CUDA_STEPS=10 \
        compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 20 "$binary" \
        --gtest_filter="$filter$graphs"
    done
  done
fi
exit $failed
