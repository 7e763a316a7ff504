#!/usr/bin/env bash
# Keeps the order of the layers, kernels <- engine <- calibration <- service, proto <- service,
# calibration <- training, and of the rooms inside each of them: a room sees the rooms before it in
# its list, and no others.
# Reads include lines only; prints every line that breaks a rule.
set -euo pipefail
cd "${1:-$(dirname "$(readlink -f "$0")")/..}"

folders=()
for folder in kernels engine calibration training service proto tests; do
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
# one WHAT HEADERS: at most one file of the product includes such a header.
one() {
  local files
  files=$(grep -vE "^tests/" <<<"$includes" | grep -E "include[[:space:]]*[\"<]($2)" |
    cut -d: -f1 | sort -u || true)
  if [ "$(wc -w <<<"$files")" -gt 1 ]; then report "$1" "$files"; fi
}
# rooms FOLDER ROOM...: from the lowest to the highest; files of the folder itself see all of them.
# "." as a room: the folder's own headers, which the rooms after it may see. Without subfolders of
# rooms: those belong to their room.
rooms() {
  local folder=$1 room
  shift
  for room in "$folder"/*/; do
    room=$(basename "$room")
    [[ " $* " == *" $room "* ]] || report "$folder/$room has no place among the rooms" "$room"
  done
  report "a room of $folder sees a room above it" "$(awk -v folder="$folder" -v order="$*" '
    BEGIN { n = split(order, names, " "); for (i = 1; i <= n; ++i) rank[names[i]] = i }
    {
      # PATH:LINE:#include "PATH"
      split($0, field, ":")
      if (split(field[1], from, "/") < 3 || from[1] != folder) next
      if (!match($0, /"[^"]+"/)) next
      header = substr($0, RSTART + 1, RLENGTH - 2)
      parts = split(header, to, "/")
      if (to[1] != folder) next
      room = parts < 3 ? "." : to[2]
      if (!(room in rank) || rank[room] > rank[from[2]]) print
    }' <<<"$includes")"
}

rule "kernels sees no layer above it" 'kernels/[^:]*' '(engine|calibration|training|service|eta/v1|tests)/'
rule "engine sees kernels only" 'engine/[^:]*' '(calibration|training|service|eta/v1|tests)/'
rule "calibration sees kernels and engine only" 'calibration/[^:]*' \
  '(training|service|eta/v1|tests)/'
rule "training sees kernels, engine and calibration only" 'training/[^:]*' '(service|eta/v1|tests)/'
rule "the service trains nothing" 'service/[^:]*' 'training/'
rule "the product sees no tests" 'service/[^:]*' 'tests/'
rule "nothing outside a backend sees its parts" '(engine|service)/[^:]*' \
  'kernels/(cpu|cuda|reference)/'
only "only service and tests see gRPC and Protocol Buffers" '(service|tests)/[^:]*' \
  '(grpcpp|grpc|google/(protobuf|rpc)|eta/v1|opentelemetry|smg|vllm)/'
only "only service and tests see prometheus-cpp" '(service|tests)/[^:]*' 'prometheus/'
rule "what is counted, and its page, know no gRPC" 'service/(telemetry|stats/page)/[^:]*' \
  '(grpcpp|grpc|google/(protobuf|rpc)|eta/v1|opentelemetry|smg|vllm)/'
rule "nothing outside a backend of training sees its parts" \
  'training/(model|optimizer|trainer|data|state|progress|evaluation|export|adaptation|commands)/[^:]*' \
  'training/(cpu|cuda|reference)/'
only "only the backends on CUDA and their tests see it" '(kernels/cuda|training/cuda|tests)/[^:]*' \
  '(cuda[A-Za-z_]*\.h|cublas|nccl|cub/)'
rule "the client program sees the API, settings as messages, the formats of keys and the words on bad flags only" 'service/etactl/[^:]*' \
  'service/(admin|calibrate|calls|connections|generate|health|kv_events|lifecycle|limits|log|options/(access|engine|flag|insecure|operation|profiles|server)|process|profiles|server|stats|telemetry|tracing|vllm|wire/(grpc_status|payload_digest|request_id|store_status|trace_context|wire_message)\.h|[a-z_]+\.h)'
only "only one folder sees xgrammar" 'engine/format/library/[^:]*' '(xgrammar|picojson|dlpack)/'
one "only one file sees OpenBLAS" '(cblas|openblas)'
one "only one file sees the exposer" '(civetweb|CivetServer|prometheus/exposer)'
one "only one file sees ZeroMQ" 'zmq'
one "only one file sees SentencePiece" 'sentencepiece'

rooms kernels system . weights params reference cpu cuda backends
rooms engine base chat checkpoint model request tokenizer format batching passes front
rooms calibration figures solvers profiles needles calibrate evaluation
rooms service log process wire connections telemetry kv_events options tracing identity limits calls profiles \
  calibrate generate stats admin health vllm server lifecycle etactl
rooms training . reference cpu cuda backends model optimizer trainer data state progress evaluation export \
  adaptation commands

if [ "$broken" -eq 0 ]; then echo "layers: in order"; fi
exit "$broken"
