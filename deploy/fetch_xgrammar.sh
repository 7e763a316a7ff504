#!/usr/bin/env bash
# Fetches the sources of xgrammar, which compiles formats of answers (CMake's ETA_GRAMMAR), from its
# source package of PyPI, pinned by its digest. Nothing of the package is run: pip would build it to
# learn what it is.
#   deploy/fetch_xgrammar.sh [DIR]      default: build/xgrammar
# Changes what engine/format/library/xgrammar.patch changes. Keeps the library, the headers that it
# brings along (picojson, dlpack) and their licences. Prints DIR. Needs python3, and PyPI or a mirror
# of it as pip is told: PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS, PIP_CERT, or pip's
# configuration where there is pip.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

if [ "${1-}" = --help ] || [ "${1-}" = -h ] || [ $# -gt 1 ]; then
  sed -n '2,9s/^# *//p' "$0" >&2
  [ $# -le 1 ] || exit 2
  exit 0
fi
exec python3 - "${1:-build/xgrammar}" <<'PYTHON'
import base64
import hashlib
import html.parser
import io
import json
import os
import pathlib
import re
import shutil
import ssl
import subprocess
import sys
import tarfile
import tempfile
import urllib.parse
import urllib.request

NAME, VERSION = "xgrammar", "0.2.8"
FILE = f"{NAME}-{VERSION}.tar.gz"
DIGEST = "8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80"
PATCH = pathlib.Path("engine/format/library/xgrammar.patch")
SIZE_LIMIT = 16 << 20
TIMEOUT_S = 60
KEPT = re.compile(
    r"LICENSE|NOTICE|include/xgrammar/\w+\.h|cpp/(converter_ext/|support/)?\w+\.(h|cc)|"
    r"3rdparty/picojson/picojson\.h|3rdparty/dlpack/(LICENSE|include/dlpack/dlpack\.h)")
PIP_DEFAULT = "https://pypi.org/simple"


def fail(reason):
    sys.exit(f"fetch_xgrammar: {reason}")


def setting(name):
    """As pip has it: from the environment, else from its configuration; empty without either."""
    given = os.environ.get("PIP_" + name.upper().replace("-", "_"))
    if given is not None:
        return given
    for section in ("download", "global"):
        asked = [sys.executable, "-m", "pip", "config", "get", f"{section}.{name}"]
        said = subprocess.run(asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
        if said.returncode == 0:
            return said.stdout.strip()
    return ""


class Links(html.parser.HTMLParser):
    """Where the links of a page lead."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        if tag == "a" and dict(attrs).get("href"):
            self.found.append(dict(attrs)["href"])


def get(url, accept="*/*"):
    parts = urllib.parse.urlsplit(url)
    request = urllib.request.Request(
        parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl(), headers={"Accept": accept})
    if parts.username:
        secret = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        request.add_header("Authorization", "Basic " + base64.b64encode(secret.encode()).decode())
    context = ssl.create_default_context(cafile=setting("cert") or None)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as answer:
        return answer.read(SIZE_LIMIT), answer.headers.get_content_type(), answer.geturl()


def in_index(index):
    """The file by way of the page that an index has of the package; None if it is not there."""
    page, kind, base = get(f"{index.rstrip('/')}/{NAME}/",
                           "application/vnd.pypi.simple.v1+json, text/html;q=0.5")
    if kind.endswith("json"):
        links = [file["url"] for file in json.loads(page)["files"]]
    else:
        links = Links()
        links.feed(page.decode())
        links = links.found
    for link in links:
        if urllib.parse.urlsplit(link).path.endswith("/" + FILE):
            return get(urllib.parse.urljoin(base, link))[0]
    return None


def archive():
    tried = []
    for folder in setting("find-links").split():
        path = pathlib.Path(folder.removeprefix("file://")) / FILE
        if path.is_file():
            return path.read_bytes()
    for index in [setting("index-url") or PIP_DEFAULT, *setting("extra-index-url").split()]:
        try:
            data = in_index(index)
        except (OSError, ValueError, KeyError) as error:
            tried.append(str(error))
            continue
        if data is not None:
            return data
        tried.append(f"the index has no {FILE}")
    return fail(f"{NAME}=={VERSION} could not be had from PyPI: {'; '.join(tried)}")


def unpack(data, folder):
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as package:
        for member in package:
            name = member.name.partition("/")[2]
            if not member.isfile() or not KEPT.fullmatch(name):
                continue
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(package.extractfile(member).read())
    # Its licence stands at the head of its only file.
    picojson = folder / "3rdparty/picojson"
    licence = re.match(r"/\*\n(.*?)\*/", (picojson / "picojson.h").read_text(), re.DOTALL)[1]
    (picojson / "LICENSE").write_text(re.sub(r"(?m)^ \* ?", "", licence))


def patch(folder, text):
    """Changes what a unified diff changes, wherever it stands, once."""
    for part in re.split(r"(?m)^--- ", text)[1:]:
        name = re.search(r"(?m)^\+\+\+ b/(.*)$", part)[1]
        source = (folder / name).read_text()
        for hunk in re.split(r"(?m)^@@ .*\n", part)[1:]:
            old = re.sub(r"(?m)^(?:\+.*\n|[ -])", "", hunk)
            new = re.sub(r"(?m)^(?:-.*\n|[ +])", "", hunk)
            if source.count(old) != 1:
                fail(f"{PATCH} does not fit {name}")
            source = source.replace(old, new)
        (folder / name).write_text(source)


def main(target):
    change = PATCH.read_text()
    stamps = {"SHA256": DIGEST, "PATCH_SHA256": hashlib.sha256(change.encode()).hexdigest()}
    if not all((target / name).is_file() and (target / name).read_text().strip() == stamp
               for name, stamp in stamps.items()):
        data = archive()
        if hashlib.sha256(data).hexdigest() != DIGEST:
            fail(f"{FILE} is not the file that is known")
        target.parent.mkdir(parents=True, exist_ok=True)
        # Beside its place first: it is there whole or not at all.
        with tempfile.TemporaryDirectory(dir=target.parent) as work:
            folder = pathlib.Path(work) / NAME
            unpack(data, folder)
            patch(folder, change)
            for name, stamp in stamps.items():
                (folder / name).write_text(stamp + "\n")
            (folder / "VERSION").write_text(VERSION + "\n")
            if target.exists():
                shutil.rmtree(target)
            folder.rename(target)
    print(target)


main(pathlib.Path(sys.argv[1]))
PYTHON
