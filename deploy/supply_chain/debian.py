"""What the package database of this Debian says about files and packages."""

import functools
import os
import re
import subprocess

DOC = "/usr/share/doc"


class Unknown(Exception):
    """A file or package that the database does not know."""


def _run(*command):
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    if done.returncode != 0:
        raise Unknown(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def release():
    with open("/etc/debian_version", encoding="ascii") as file:
        return file.read().strip()


@functools.cache
def _installed():
    fields = ("Package", "Version", "Architecture", "source:Package", "source:Version", "Homepage", "db:Status-Status")
    lines = _run("dpkg-query", "-W", "-f", "\t".join("${" + field + "}" for field in fields) + "\n").splitlines()
    packages = [dict(zip(fields, line.split("\t"))) for line in lines]
    return {found["Package"]: found for found in packages if found["db:Status-Status"] == "installed"}


def installed(name):
    return name in _installed()


def package(name):
    """Package, Version, Architecture, source:Package, source:Version, Homepage of one that is installed."""
    if not installed(name):
        raise Unknown(f"package {name} is not installed")
    return _installed()[name]


def owners(paths):
    """{file: name of the package that brought it; None if none did}."""
    # The database may know a file of a merged /usr by either name.
    names = {path: {path, os.path.realpath(path), os.path.realpath(path).removeprefix("/usr")} for path in paths}
    # Its exit code is 1 if it knows one of them not.
    command = ["dpkg-query", "-S", *sorted(set().union(*names.values()))]
    said = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}).stdout
    known = {}
    for line in said.splitlines():
        packages, _, path = line.rpartition(": ")
        known[path] = packages.split(",")[0].split(":")[0]
    return {path: next((known[name] for name in sorted(of) if name in known), None) for path, of in names.items()}


def loaded_libraries(binaries):
    """{name that is asked for: file that the loader takes}, over all libraries of all binaries."""
    found = {}
    for line in _run("ldd", *binaries).splitlines():
        match = re.match(r"\t(?:(\S+) => )?(/\S+) \(0x", line)
        if match:
            found[match[1] or os.path.basename(match[2])] = match[2]
        elif "not found" in line:
            raise Unknown("library " + line.strip())
    return dict(sorted(found.items()))


# Licences by the short names of Debian's copyright files, and of those files that are prose.
_SPDX = {
    "apache-2.0": "Apache-2.0", "apache-2": "Apache-2.0", "artistic": "Artistic-1.0-Perl",
    "bsd-2-clause": "BSD-2-Clause", "bsd-3-clause": "BSD-3-Clause", "bsd-variant": "bzip2-1.0.6",
    "bsl-1.0": "BSL-1.0",
    "cc0-1.0": "CC0-1.0", "curl": "curl", "expat": "MIT", "mit": "MIT", "mit/x11": "MIT",
    "fsfap": "FSFAP", "gpl-1+": "GPL-1.0-or-later", "gpl-2": "GPL-2.0-only",
    "gpl-2+": "GPL-2.0-or-later", "gpl-2.0+": "GPL-2.0-or-later", "gpl-3": "GPL-3.0-only",
    "gpl-3+": "GPL-3.0-or-later", "gplv3+": "GPL-3.0-or-later", "isc": "ISC",
    "lgpl-2": "LGPL-2.0-only", "lgpl-2+": "LGPL-2.0-or-later", "lgpl-2.1": "LGPL-2.1-only",
    "lgpl-2.1+": "LGPL-2.1-or-later", "lgplv2.1+": "LGPL-2.1-or-later",
    "lgpl-3+": "LGPL-3.0-or-later", "openldap-2.8": "OLDAP-2.8", "x11": "X11", "zlib": "Zlib",
}  # fmt: skip
_PROSE = {
    "gcc-12": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "glibc": "LGPL-2.1-or-later",
    "c-ares": "MIT",
    "gnutls28": "LGPL-2.1-or-later",
    "krb5": "MIT",
    "libzip": "BSD-3-Clause",
    "libtasn1-6": "LGPL-2.1-or-later",
}


def _licence(name):
    """One licence as SPDX writes it; LicenseRef-... if it is none of SPDX's."""
    name = name.strip().rstrip(",")
    known = _SPDX.get(name.lower())
    return known or "LicenseRef-Debian-" + re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-")


def _expression(synopsis):
    """ "A or B", "A and B", as an SPDX expression."""
    ways = [" AND ".join(_licence(part) for part in re.split(r"\s+and\s+", way))
            for way in re.split(r"\s+or\s+", synopsis)]  # fmt: skip
    return ways[0] if len(ways) == 1 else "(" + " OR ".join(f"({w})" if " " in w else w for w in ways) + ")"


def licences(name):
    """(SPDX expression, {LicenseRef: text}) of all that a package's copyright file names, but for
    the packaging's own: more than what ends up in one library of it, never less."""
    path = f"{DOC}/{name}/copyright"
    if not os.path.exists(path):
        return "NOASSERTION", {}
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    source = package(name)["source:Package"]
    if not text.startswith("Format:"):
        if source in _PROSE:
            return _PROSE[source], {}
        reference = f"LicenseRef-Debian-copyright-{re.sub(r'[^A-Za-z0-9.]+', '-', source)}"
        return reference, {reference: text}
    terms = set()
    for stanza in re.split(r"\n\s*\n", text):
        if re.search(r"(?m)^Files:\s*debian/\S*\s*$", stanza) or not re.search("(?m)^Files:", stanza):
            continue
        if synopsis := re.search(r"(?m)^License:[ \t]*(\S.*)$", stanza):
            terms.add(_expression(synopsis[1]))
    expression = " AND ".join(sorted(terms)) or "NOASSERTION"
    # The text of such a licence stands in the copyright file, which is shipped beside the library.
    references = set(re.findall(r"LicenseRef-[A-Za-z0-9.-]+", expression))
    return expression, {reference: f"See {path}, under this name." for reference in references}
