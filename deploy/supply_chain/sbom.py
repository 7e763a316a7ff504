#!/usr/bin/env python3
"""The software bill of materials of eta-server, SPDX 2.3 as JSON, from what is there: the libraries that the binaries
load, by the package database; libraries that are compiled in; CA certificates; definitions and weights that the
repository carries. Not in it: licences, package records and the few lines that image_root.sh writes to /etc.

    deploy/supply_chain/sbom.py --output FILE [--library FILE]... [--model DIR]... [--xgrammar DIR] BINARY...

--library names one that is loaded at run time (cuBLASLt), --xgrammar the sources of xgrammar where the binaries have it. SOURCE_DATE_EPOCH sets the time that the document bears."""

import argparse
import datetime
import hashlib
import json
import os
import pathlib
import re
import sys

import debian

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Compiled into the binaries, wholly or in part: headers with code in them, and what a compiler links to each program.
COMPILED_IN = ("nlohmann-json3-dev", "libcli11-dev", "libhwy-dev", "libabsl-dev", "libgrpc++-dev", "libprotobuf-dev",
               "libstdc++-12-dev", "libgcc-12-dev", "libc6-dev")  # fmt: skip
BUILD_TOOLS = ("g++-12", "binutils", "cmake", "ninja-build", "protobuf-compiler", "protobuf-compiler-grpc")
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
CARRIED = {
    "proto/google/rpc": ("googleapis-rpc", "https://github.com/googleapis/googleapis"),
    "proto/grpc/health/v1": ("grpc-health-proto", "https://github.com/grpc/grpc-proto"),
    "proto/opentelemetry": ("opentelemetry-proto", "https://github.com/open-telemetry/opentelemetry-proto"),
}

# What xgrammar's sources bring along.
FETCHED = (
    ("picojson", "BSD-2-Clause", "https://github.com/kazuho/picojson"),
    ("dlpack", "Apache-2.0", "https://github.com/dmlc/dlpack"),
)


def project_version():
    return re.search(r"project\(eta_server VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]


def identifier(*parts):
    return "SPDXRef-" + "-".join(re.sub(r"[^A-Za-z0-9.]+", "-", part).strip("-") for part in parts)


def checksums(path):
    data = pathlib.Path(path).read_bytes()
    return [
        {"algorithm": "SHA1", "checksumValue": hashlib.sha1(data).hexdigest()},  # demanded by SPDX
        {"algorithm": "SHA256", "checksumValue": hashlib.sha256(data).hexdigest()},
    ]


class Document:
    def __init__(self):
        self.packages, self.files, self.relations, self.texts = {}, {}, set(), {}

    def package(self, spdx_id, **fields):
        self.packages[spdx_id] = {
            "SPDXID": spdx_id, "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
            "licenseConcluded": "NOASSERTION", "copyrightText": "NOASSERTION", **fields,
        }  # fmt: skip
        return spdx_id

    def debian(self, name):
        found = debian.package(name)
        licence, texts = debian.licences(name)
        self.texts.update(texts)
        purl = f"pkg:deb/debian/{found['Package'].replace('+', '%2B')}@{found['Version'].replace('+', '%2B').replace(':', '%3A')}"
        fields = {
            "name": name, "versionInfo": found["Version"], "licenseDeclared": licence,
            "supplier": "Organization: Debian",
            "sourceInfo": f"source package {found['source:Package']} {found['source:Version']}",
            "externalRefs": [{
                "referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                "referenceLocator": f"{purl}?arch={found['Architecture']}&distro=debian-{debian.release()}",
            }],
        }  # fmt: skip
        if found["Homepage"]:
            fields["homepage"] = found["Homepage"]
        return self.package(identifier("Package", name), **fields)

    def file(self, path, name):
        spdx_id = identifier("File", name)
        self.files[spdx_id] = {
            "SPDXID": spdx_id, "fileName": name, "checksums": checksums(path),
            "licenseConcluded": "NOASSERTION", "copyrightText": "NOASSERTION",
        }  # fmt: skip
        return spdx_id

    def relate(self, element, kind, related):
        self.relations.add((element, kind, related))

    def json(self, name, created):
        body = {
            "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": name,
            "creationInfo": {"created": created, "creators": ["Tool: eta-server deploy/supply_chain/sbom.py"]},
            "packages": [self.packages[key] for key in sorted(self.packages)],
            "files": [self.files[key] for key in sorted(self.files)],
            "hasExtractedLicensingInfos": [
                {"licenseId": key, "name": key, "extractedText": self.texts[key]} for key in sorted(self.texts)],
            "relationships": [
                {"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b}
                for a, kind, b in sorted(self.relations)],
        }  # fmt: skip
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        body["documentNamespace"] = f"https://spdx.org/spdxdocs/{name}-{digest[:32]}"
        return body


def foreign_library(document, path):
    """One that no package brought, such as NVIDIA's."""
    real = os.path.realpath(path)
    name, _, version = os.path.basename(real).partition(".so.")
    nvidia = name.startswith(("libcu", "libnv"))
    return document.package(
        identifier("Library", name), name=name, versionInfo=version or "unknown",
        supplier="Organization: NVIDIA Corporation" if nvidia else "NOASSERTION",
        licenseDeclared="LicenseRef-NVIDIA-CUDA-EULA" if nvidia else "NOASSERTION")  # fmt: skip


def fetched(document, folder):
    """xgrammar as fetch_xgrammar.sh left it in `folder`, and its parts; their ids."""
    version, digest = ((folder / name).read_text().strip() for name in ("VERSION", "SHA256"))
    yield document.package(
        identifier("Package", "xgrammar"), name="xgrammar", versionInfo=version, licenseDeclared="Apache-2.0",
        downloadLocation=f"https://pypi.org/project/xgrammar/{version}", supplier="NOASSERTION",
        checksums=[{"algorithm": "SHA256", "checksumValue": digest}],
        externalRefs=[{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                       "referenceLocator": f"pkg:pypi/xgrammar@{version}"}])  # fmt: skip
    for name, licence, origin in FETCHED:
        yield document.package(
            identifier("Package", name), name=name, downloadLocation=origin, licenseDeclared=licence,
            supplier="NOASSERTION", sourceInfo=f"copied to 3rdparty/{name} of xgrammar {version}")  # fmt: skip


def describe(binaries, libraries, models, xgrammar=None):
    document = Document()
    version = project_version()
    product = document.package(
        identifier("Package", "eta-server"), name="eta-server", versionInfo=version, licenseDeclared="Apache-2.0",
        primaryPackagePurpose="APPLICATION", supplier="NOASSERTION")  # fmt: skip
    document.relate("SPDXRef-DOCUMENT", "DESCRIBES", product)
    for binary in binaries:
        file = document.file(binary, "/usr/bin/" + os.path.basename(binary))
        document.relate(file, "GENERATED_FROM", product)

    asked = dict(debian.loaded_libraries([*binaries, *libraries]))
    for library in libraries:
        asked[os.path.basename(library)] = library
    for path, name in debian.owners(asked.values()).items():
        package = document.debian(name) if name else foreign_library(document, path)
        if "LicenseRef-NVIDIA-CUDA-EULA" in document.packages[package]["licenseDeclared"]:
            document.texts["LicenseRef-NVIDIA-CUDA-EULA"] = "https://docs.nvidia.com/cuda/eula/"
        document.relate(product, "DYNAMIC_LINK", package)
        document.relate(document.file(path, path), "GENERATED_FROM", package)
    for name in COMPILED_IN:
        document.relate(product, "STATIC_LINK", document.debian(name))
    for name in BUILD_TOOLS:
        document.relate(document.debian(name), "BUILD_TOOL_OF", product)
    certificates = document.debian("ca-certificates")
    document.relate(certificates, "RUNTIME_DEPENDENCY_OF", product)
    document.relate(document.file(CERTIFICATES, CERTIFICATES), "GENERATED_FROM", certificates)
    for folder, (name, origin) in CARRIED.items():
        if (ROOT / folder).is_dir():
            carried = document.package(
                identifier("Package", name), name=name, downloadLocation=origin, licenseDeclared="Apache-2.0",
                supplier="NOASSERTION", sourceInfo=f"copied to {folder}")  # fmt: skip
            document.relate(product, "STATIC_LINK", carried)
    for package in fetched(document, pathlib.Path(xgrammar)) if xgrammar else ():
        document.relate(product, "STATIC_LINK", package)
    for model in map(pathlib.Path, models):
        package = document.package(
            identifier("Model", model.name), name=model.name, versionInfo=version, licenseDeclared="Apache-2.0",
            supplier="NOASSERTION", primaryPackagePurpose="OTHER",
            comment="Weights of a language model; README.md beside them names what they were trained on.")  # fmt: skip
        document.relate(package, "DATA_FILE_OF", product)
        for path in sorted(model.iterdir()):
            if path.is_file():
                document.relate(document.file(path, f"/models/{model.name}/{path.name}"), "GENERATED_FROM", package)
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", datetime.datetime.now().timestamp()))
    created = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return document.json(f"eta-server-{version}", created)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", nargs="+", metavar="BINARY")
    parser.add_argument("--library", action="append", default=[])
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--xgrammar")
    parser.add_argument("--output", required=True)
    arguments = parser.parse_args()
    try:
        document = describe(arguments.binaries, arguments.library, arguments.model, arguments.xgrammar)
    except (debian.Unknown, OSError) as error:
        sys.exit(f"sbom: {error}")
    pathlib.Path(arguments.output).write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"sbom: {len(document['packages'])} packages, {len(document['files'])} files")


if __name__ == "__main__":
    main()
