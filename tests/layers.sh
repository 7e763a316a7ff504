#!/usr/bin/env bash
# Keeps the order of the layers: kernels <- engine <- { service, calibration }, proto <- service.
# Reads include lines only; prints every line that breaks a rule.
set -euo pipefail
cd "${1:-$(dirname "$(readlink -f "$0")")/..}"

folders=()
for folder in kernels engine calibration service proto tests; do
  [ -d "$folder" ] && folders+=("$folder")
done
includes=$(grep -rnE '^[[:space:]]*#[[:space:]]*include' "${folders[@]}" \
  --include='*.h' --include='*.cc' --include='*.cu' --include='*.cuh' || true)
[ -n "$includes" ] || {
  echo "layers: no include lines found under $PWD" >&2
  exit 1
}

broken=0
report() {
  if [ -n "$2" ]; then
    printf 'layers: %s\n%s\n' "$1" "$2" >&2
    broken=1
  fi
}
# rule WHAT FILES HEADERS: no file that matches FILES includes a header that matches HEADERS.
rule() {
  report "$1" "$(grep -E "^($2):" <<<"$includes" | grep -E "include[[:space:]]*[\"<]($3)" || true)"
}
# only WHAT FILES HEADERS: no file but those that match FILES includes such a header.
only() {
  report "$1" "$(grep -vE "^($2):" <<<"$includes" | grep -E "include[[:space:]]*[\"<]($3)" || true)"
}

rule "kernels sees no layer above it" 'kernels/[^:]*' '(engine|calibration|service|eta/v1|tests)/'
rule "engine sees kernels only" 'engine/[^:]*' '(calibration|service|eta/v1|tests)/'
rule "calibration sees kernels and engine only" 'calibration/[^:]*' '(service|eta/v1|tests)/'
rule "the product sees no tests" 'service/[^:]*' 'tests/'
rule "nothing outside a backend sees its parts" '(engine|service)/[^:]*' \
  'kernels/(cpu|cuda|reference)/'
only "only service and tests see gRPC and Protocol Buffers" '(service|tests)/[^:]*' \
  '(grpcpp|grpc|google/(protobuf|rpc)|eta/v1)/'
rule "what is counted knows no gRPC" 'service/telemetry/[^:]*' \
  '(grpcpp|grpc|google/(protobuf|rpc)|eta/v1)/'
only "only one file sees the HTTP server" 'service/telemetry/metrics_server\.cc' 'civetweb'
only "only kernels/cuda and its tests see CUDA" '(kernels/cuda|tests)/[^:]*' \
  '(cuda[A-Za-z_]*\.h|cublas|nccl|cub/)'

readers=$(grep -E 'include[[:space:]]*["<]sentencepiece' <<<"$includes" | cut -d: -f1 | sort -u || true)
if [ "$(wc -w <<<"$readers")" -gt 1 ]; then
  report "only one file sees SentencePiece" "$readers"
fi

if [ "$broken" -eq 0 ]; then echo "layers: in order"; fi
exit "$broken"
