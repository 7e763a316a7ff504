#!/usr/bin/env bash
# Builds twice, from copies in folders of different names and in different surroundings, and compares
# the results byte for byte. It takes as long as two builds without a compiler's cache: by hand.
#   tests/deploy/reproducible.sh [TARGET...]      default: eta-server etactl
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."

targets=("$@")
if [ $# -eq 0 ]; then targets=(eta-server etactl); fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

build() { # NAME SETTING...
  local source=$work/$1/source build=$work/$1/$1-of-the-build
  mkdir -p "$source"
  git ls-files -z --cached --others --exclude-standard -- CMakeLists.txt calibration engine kernels proto service |
    xargs -0 cp --parents -t "$source"
  (
    export CCACHE_DISABLE=1 "${@:2}"
    cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DETA_TESTS=OFF -DETA_CUDA=OFF &&
      cmake --build "$build" --parallel "$(nproc)" --target "${targets[@]}"
  ) >"$work/log" 2>&1 || {
    tail -n 30 "$work/log" >&2
    exit 1
  }
  (cd "$build" && find . -type f \( -name '*.o' -o -path './bin/*' \) -print0 | sort -z | xargs -0 sha256sum) >"$work/$1.sums"
}

build one TZ=UTC LC_ALL=C
sleep 1 # the clock's, too
build another-name TZ=Asia/Tokyo LC_ALL=C.UTF-8 HOME=/nowhere USER=somebody

if ! diff "$work/one.sums" "$work/another-name.sums" >"$work/differences"; then
  echo "reproducible: these differ between two builds:" >&2
  sed -nE 's/^< [0-9a-f]+  //p' "$work/differences" >&2
  exit 1
fi
echo "reproducible: $(grep -c '\.o$' "$work/one.sums") objects, $(grep -c ' \./bin/' "$work/one.sums") binaries, equal"
