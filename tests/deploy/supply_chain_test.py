"""What is shipped is what is said: binaries built against intruders, a bill of materials that names all they load, the
lock of package versions, the table of known defects.

    supply_chain_test.py BINARY_DIR [--failpoints]     # --failpoints: of a build for tests"""

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import jsonschema

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "deploy/supply_chain"))
import debian  # noqa: E402
import flags  # noqa: E402
import lock  # noqa: E402

# Version and digest that the script fetches.
XGRAMMAR = re.search(r'NAME, VERSION = "xgrammar", "([^"]+)"\n.*\nDIGEST = "([0-9a-f]{64})"',
                     (ROOT / "deploy/fetch_xgrammar.sh").read_text()).groups()  # fmt: skip
FAILPOINTS = "--failpoints" in sys.argv
if FAILPOINTS:
    sys.argv.remove("--failpoints")
BINARIES = pathlib.Path(sys.argv.pop(1)).resolve()
SHIPPED = [str(BINARIES / "eta-server"), str(BINARIES / "etactl")]


def run(*command, **options):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)


class Binaries(unittest.TestCase):
    def check(self, *arguments):
        return run(ROOT / "deploy/check_binaries.sh", *arguments)

    def compiled(self, folder, *flags):
        source, binary = pathlib.Path(folder, "x.cc"), pathlib.Path(folder, "x")
        source.write_text(
            "#include <cstdio>\n#include <cstring>\n#include <string>\n#include <vector>\n"
            "int main(int argc, char** argv) {\n"
            "  char text[16]; strcpy(text, argv[0]); std::vector<int> v(3); std::string s(text);\n"
            "  printf(\"%d %s\", v[argc] + s[argc], text); return 0; }\n")
        built = run("g++", "-O2", *flags, source, "-o", binary)
        self.assertEqual(built.returncode, 0, built.stderr)
        return binary

    def test_are_built_against_intruders(self):
        checked = self.check(*(["--failpoints"] if FAILPOINTS else []), *SHIPPED)
        self.assertEqual(checked.returncode, 0, checked.stderr)

    @unittest.skipUnless(FAILPOINTS, "of a build for tests")
    def test_with_failpoints_are_not_shipped(self):
        checked = self.check(SHIPPED[0])
        self.assertEqual(checked.returncode, 1)
        self.assertIn("eta-server: has failpoints", checked.stderr)

    def test_lacking_any_of_it_are_told(self):
        good = ["-fPIE", "-pie", "-D_FORTIFY_SOURCE=3", "-D_GLIBCXX_ASSERTIONS", "-fstack-protector-strong",
                "-Wl,-z,relro,-z,now,-z,noexecstack"]  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            said = self.check(self.compiled(folder, *good)).stderr.splitlines()
            # A program this small cannot have the landing points.
            self.assertEqual([line for line in said if "landing points" not in line], [])
            for flags, complaint in [
                (("-no-pie",), "no position-independent program"),
                (("-Wl,-z,norelro",), "no RELRO"),
                (("-Wl,-z,lazy",), "no BIND_NOW"),
                (("-Wl,-z,execstack",), "executable stack"),
                (("-Wl,-rpath,/opt/lib",), "RPATH"),
                (("-fno-stack-protector",), "no stack protector"),
                (("-U_FORTIFY_SOURCE",), "_FORTIFY_SOURCE"),
                (("-U_GLIBCXX_ASSERTIONS",), "_GLIBCXX_ASSERTIONS"),
            ]:
                said = self.check(self.compiled(folder, *good, *flags)).stderr
                self.assertIn(complaint, said, flags)


class Flags(unittest.TestCase):
    GOOD = " ".join(("-I/src", "-O3", "-fPIE", *flags.REQUIRED, *flags.MACHINES["x86_64"]))

    def test_are_those_of_every_source(self):
        checked = run(ROOT / "deploy/supply_chain/flags.py", *(["--failpoints"] if FAILPOINTS else []), BINARIES.parent)
        self.assertEqual(checked.returncode, 0, checked.stderr)
        self.assertGreater(int(checked.stdout.split()[1]), 150)

    def test_lacking_or_undone_are_told(self):
        self.assertEqual(flags.wrong(f"c++ {self.GOOD} -c x.cc", "x86_64"), [])
        for flag in [*flags.REQUIRED, *flags.MACHINES["x86_64"], "-O3", "-fPIE"]:
            self.assertEqual(len(flags.wrong(f"c++ {self.GOOD} -c x.cc".replace(" " + flag, ""), "x86_64")), 1, flag)
        for flag in ["-O0", "-fno-stack-protector", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=1", "-fcf-protection=none",
                     "-fno-PIE", "-ftrivial-auto-var-init=uninitialized", "-DETA_FAILPOINTS"]:  # fmt: skip
            self.assertEqual(len(flags.wrong(f"c++ {self.GOOD} {flag} -c x.cc", "x86_64")), 1, flag)
        self.assertEqual(flags.wrong(f"c++ {self.GOOD} -DETA_FAILPOINTS -c x.cc", "x86_64", failpoints=True), [])

    def test_of_a_room_are_those_of_each_source_in_it(self):
        with tempfile.TemporaryDirectory() as folder:
            unit = pathlib.Path(folder, "service/CMakeFiles/x.dir/Unity/unity_service_x_cxx.cxx")
            unit.parent.mkdir(parents=True)
            unit.write_text("/* generated by CMake */\n\n" + "".join(
                f'#include "{ROOT}/service/{name}"\n\n' for name in ("a.cc", "b.cc")))
            for command, said in ((f"c++ {self.GOOD}", ""), ("c++ -O3", f"{ROOT}/service/b.cc lacks -fstack-clash-protection")):
                pathlib.Path(folder, "compile_commands.json").write_text(json.dumps(
                    [{"directory": folder, "command": f"{command} -c {unit}", "file": str(unit)}]))
                checked = run(ROOT / "deploy/supply_chain/flags.py", folder)
                self.assertIn(said or "flags: 2 sources in order", checked.stdout + checked.stderr)
                self.assertEqual(checked.returncode, 1 if said else 0)

    def test_of_the_preset_that_ships_have_no_failpoints(self):
        presets = {preset["name"]: preset.get("cacheVariables", {})
                   for preset in json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]}  # fmt: skip
        self.assertEqual(presets["release"]["ETA_FAILPOINTS"], "OFF")
        self.assertEqual(presets["ci"]["ETA_FAILPOINTS"], "ON")


# What SPDX 2.3 demands of a document in JSON and what it lets us choose from, as far as ours goes: no field that is not
# in this list is written.
TEXT = {"type": "string", "minLength": 1}
ID = {"type": "string", "pattern": r"^SPDXRef-[A-Za-z0-9.-]+$"}
LICENCE = {"type": "string", "pattern": r"^[A-Za-z0-9.+() -]+$"}


def record(required, optional=None):
    return {"type": "object", "properties": {**required, **(optional or {})}, "required": list(required),
            "additionalProperties": False}  # fmt: skip


def many(item, least=1):
    return {"type": "array", "items": item, "minItems": least}


SPDX = record({
    "spdxVersion": {"const": "SPDX-2.3"},
    "dataLicense": {"const": "CC0-1.0"},
    "SPDXID": {"const": "SPDXRef-DOCUMENT"},
    "name": TEXT,
    "documentNamespace": {"type": "string", "pattern": "^https://[^#]+$"},
    "creationInfo": record({
        "created": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"},
        "creators": many({"type": "string", "pattern": "^(Tool|Person|Organization): "})}),
    "packages": many(record(
        {"SPDXID": ID, "name": TEXT, "downloadLocation": TEXT, "filesAnalyzed": {"const": False},
         "licenseDeclared": LICENCE, "licenseConcluded": LICENCE, "copyrightText": TEXT,
         "supplier": {"type": "string", "pattern": "^(NOASSERTION$|Organization: |Person: )"}},
        {"versionInfo": TEXT, "homepage": TEXT, "sourceInfo": TEXT, "comment": TEXT,
         "primaryPackagePurpose": {"enum": ["APPLICATION", "LIBRARY", "OTHER"]},
         "externalRefs": many(record({
             "referenceCategory": {"const": "PACKAGE-MANAGER"}, "referenceType": {"const": "purl"},
             "referenceLocator": {"type": "string", "pattern": r"^pkg:(deb/debian|pypi)/[a-z0-9.%+A-F-]+@\S+$"}})),
         "checksums": many(record({
             "algorithm": {"const": "SHA256"}, "checksumValue": {"type": "string", "pattern": "^[0-9a-f]{64}$"}}))})),
    "files": many(record({
        "SPDXID": ID, "fileName": {"type": "string", "pattern": "^/"}, "licenseConcluded": LICENCE, "copyrightText": TEXT,
        "checksums": many(record({
            "algorithm": {"enum": ["SHA1", "SHA256"]},
            "checksumValue": {"type": "string", "pattern": "^([0-9a-f]{40}|[0-9a-f]{64})$"}}))})),
    "hasExtractedLicensingInfos": many(record({
        "licenseId": {"type": "string", "pattern": r"^LicenseRef-[A-Za-z0-9.-]+$"}, "name": TEXT, "extractedText": TEXT})),
    "relationships": many(record({
        "spdxElementId": ID, "relatedSpdxElement": ID,
        "relationshipType": {"enum": ["DESCRIBES", "DYNAMIC_LINK", "STATIC_LINK", "BUILD_TOOL_OF", "GENERATED_FROM",
                                      "DATA_FILE_OF", "RUNTIME_DEPENDENCY_OF"]}})),
})  # fmt: skip


class BillOfMaterials(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = pathlib.Path(cls.folder.name, "sbom.json")
        made = cls.make(cls.path)
        if made.returncode != 0:
            raise AssertionError(made.stderr)
        cls.document = json.loads(cls.path.read_text())
        cls.packages = {package["SPDXID"]: package for package in cls.document["packages"]}
        cls.files = {file["fileName"]: file["SPDXID"] for file in cls.document["files"]}

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @staticmethod
    def make(path):
        return run(ROOT / "deploy/supply_chain/sbom.py", "--output", path, "--model", ROOT / "models/eta-27m", *SHIPPED,
                   env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"})  # fmt: skip

    def related(self, element, kind):
        return [relation["relatedSpdxElement"] for relation in self.document["relationships"]
                if (relation["spdxElementId"], relation["relationshipType"]) == (element, kind)]  # fmt: skip

    def test_is_spdx(self):
        jsonschema.Draft7Validator(SPDX).validate(self.document)
        ids = ["SPDXRef-DOCUMENT", *self.packages, *self.files.values()]
        self.assertEqual(len(ids), len(set(ids)))
        for relation in self.document["relationships"]:
            self.assertIn(relation["spdxElementId"], ids)
            self.assertIn(relation["relatedSpdxElement"], ids)
        texts = {text["licenseId"] for text in self.document["hasExtractedLicensingInfos"]}
        named = set(re.findall("LicenseRef-[A-Za-z0-9.-]+", " ".join(p["licenseDeclared"] for p in self.packages.values())))
        self.assertEqual(named, texts)

    def test_names_every_library_that_is_loaded_with_version_and_licence(self):
        for binary in SHIPPED:
            # What the loader itself says while it starts the program.
            loaded = set(re.findall(r"calling init: (/\S+)", run(binary, "--version", env={"LD_DEBUG": "files"}).stderr))
            self.assertGreater(len(loaded), 20)
            for path in sorted(loaded):
                with self.subTest(path):
                    package = self.packages[self.related(self.files[path], "GENERATED_FROM")[0]]
                    self.assertTrue(package["versionInfo"])
                    self.assertNotEqual(package["licenseDeclared"], "NOASSERTION")

    def test_names_what_is_compiled_in_and_the_model(self):
        compiled_in = {self.packages[key]["name"] for key in self.related("SPDXRef-Package-eta-server", "STATIC_LINK")}
        self.assertLessEqual({"nlohmann-json3-dev", "libcli11-dev", "libhwy-dev", "googleapis-rpc"}, compiled_in)
        self.assertIn("/models/eta-27m/model.safetensors", self.files)

    def test_is_the_same_for_the_same_binaries(self):
        again = pathlib.Path(self.folder.name, "again.json")
        self.make(again)
        self.assertEqual(again.read_bytes(), self.path.read_bytes())

    def test_a_library_of_no_package_is_named_too(self):
        with tempfile.TemporaryDirectory() as folder:
            library = pathlib.Path(folder, "libcublasLt.so.13.0.2")
            shutil.copy(debian.loaded_libraries(SHIPPED[:1])["libm.so.6"], library)
            output = pathlib.Path(folder, "sbom.json")
            made = run(ROOT / "deploy/supply_chain/sbom.py", "--output", output, "--library", library, SHIPPED[1])
            self.assertEqual(made.returncode, 0, made.stderr)
            document = json.loads(output.read_text())
            jsonschema.Draft7Validator(SPDX).validate(document)
            found = [package for package in document["packages"] if package["name"] == "libcublasLt"]
            self.assertEqual([package["versionInfo"] for package in found], ["13.0.2"])


    def test_xgrammar_and_what_it_brings_along_are_named(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "VERSION").write_text(XGRAMMAR[0] + "\n")
            pathlib.Path(folder, "SHA256").write_text(XGRAMMAR[1] + "\n")
            output = pathlib.Path(folder, "sbom.json")
            made = run(ROOT / "deploy/supply_chain/sbom.py", "--output", output, "--xgrammar", folder, SHIPPED[1])
            self.assertEqual(made.returncode, 0, made.stderr)
            document = json.loads(output.read_text())
        jsonschema.Draft7Validator(SPDX).validate(document)
        found = {package["name"]: package for package in document["packages"]}
        self.assertEqual(found["xgrammar"]["versionInfo"], XGRAMMAR[0])
        self.assertEqual(found["xgrammar"]["checksums"][0]["checksumValue"], XGRAMMAR[1])
        self.assertEqual([found[name]["licenseDeclared"] for name in ("xgrammar", "picojson", "dlpack")],
                         ["Apache-2.0", "BSD-2-Clause", "Apache-2.0"])  # fmt: skip


class Provenance(unittest.TestCase):
    def test_names_binaries_options_and_packages(self):
        with tempfile.TemporaryDirectory() as folder:
            output = pathlib.Path(folder, "provenance.json")
            made = run(ROOT / "deploy/supply_chain/provenance.py", "--build", BINARIES.parent, "--revision", "0123abc",
                       "--output", output, *SHIPPED)  # fmt: skip
            self.assertEqual(made.returncode, 0, made.stderr)
            statement = json.loads(output.read_text())
        self.assertEqual(statement["_type"], "https://in-toto.io/Statement/v1")
        subjects = {subject["name"]: subject["digest"]["sha256"] for subject in statement["subject"]}
        for binary in map(pathlib.Path, SHIPPED):
            self.assertEqual(subjects[binary.name], hashlib.sha256(binary.read_bytes()).hexdigest())
        definition = statement["predicate"]["buildDefinition"]
        self.assertEqual(definition["resolvedDependencies"][0]["digest"], {"gitCommit": "0123abc"})
        self.assertIn("-fstack-protector-strong", definition["externalParameters"]["flags"])
        self.assertIn("CMAKE_BUILD_TYPE", definition["externalParameters"]["options"])
        self.assertGreater(len(definition["resolvedDependencies"]), 40)


class Lock(unittest.TestCase):
    def test_is_that_of_this_machine(self):
        checked = run(ROOT / "deploy/supply_chain/lock.py", "--check", "--ships_nothing", *SHIPPED)
        print(checked.stdout, end="")
        if checked.returncode == 77:
            self.skipTest("not Debian 12")
        self.assertEqual(checked.returncode, 0, checked.stderr)

    def judge(self, here, was, source="x", ships=True):
        return lock.compare({"p": (here, source, here)}, {"p": (was, source, was)}, ships)

    def test_tells_updates_of_debian_from_other_software(self):
        self.assertEqual(self.judge("1:2.3+dfsg-4+deb12u1", "1:2.3+dfsg-4+deb12u1"), ([], []))
        for here, was, source in [
            ("1:2.3+dfsg-4+deb12u2", "1:2.3+dfsg-4+deb12u1", "x"),
            ("2.3-4+b2", "2.3-4+b1", "x"),
            ("3.0.23-1~deb12u1", "3.0.22-1~deb12u2", "openssl"),
            ("15.19-0+deb12u1", "15.18-0+deb12u1", "postgresql-15"),
        ]:
            failures, notices = self.judge(here, was, source)
            self.assertEqual((failures, len(notices)), ([], 1), here)
        # What lacks a fix may not be shipped.
        for here, was, source in [
            ("2.3-4", "2.3-4+deb12u1", "x"),
            ("3.0.19-1~deb12u2", "3.0.22-1~deb12u2", "openssl"),
        ]:
            failures, notices = self.judge(here, was, source)
            self.assertEqual((len(failures), notices), (1, []), here)
            failures, notices = self.judge(here, was, source, ships=False)
            self.assertEqual((failures, len(notices)), ([], 1), here)
        for here, was, source in [
            ("2.4-1", "2.3-4", "x"),
            ("3.1.0-1", "3.0.22-1~deb12u2", "openssl"),
            ("16.1-1", "15.18-0+deb12u1", "postgresql-15"),
        ]:
            failures, notices = self.judge(here, was, source)
            self.assertEqual((len(failures), notices), (1, []), here)
        self.assertEqual(len(lock.compare({"p": ("1", "x", "1")}, {})[0]), 1)
        self.assertEqual(len(lock.compare({}, {"p": ("1", "x", "1")})[0]), 1)
        # The front stands elsewhere.
        self.assertEqual(lock.compare({}, {"nginx": ("1", "nginx", "1")}), ([], []))

    def test_is_held_against_a_machine_that_makes_the_fronts_image(self):
        checked = run(ROOT / "deploy/supply_chain/lock.py", "--check", "--front", "--ships_nothing")
        if checked.returncode == 77:
            self.skipTest("not Debian 12")
        self.assertEqual(checked.returncode, 0, checked.stderr)
        self.assertIn(f"{len(lock.FRONT)} packages", checked.stdout)
        for wrong in (("--check",), ("--check", "--front", SHIPPED[0]), ("--write", "--front")):
            self.assertEqual(run(ROOT / "deploy/supply_chain/lock.py", *wrong).returncode, 2)

    def test_has_the_nginx_that_the_instructions_ask_for(self):
        asked = re.findall(r"1\.22\.1-\S+u\d+", (ROOT / "deploy/README.md").read_text())
        self.assertEqual(set(asked), {lock.locked()["nginx"][0]})

    def test_has_one_version_of_each_source(self):
        versions = {}
        for _, source, version in lock.locked().values():
            self.assertEqual(versions.setdefault(source, version), version, source)


class KnownDefects(unittest.TestCase):
    rows = [[cell.strip() for cell in line.strip("|").split("|")]
            for line in (ROOT / "deploy/cves.md").read_text().splitlines() if line.startswith("| CVE-")]  # fmt: skip

    def test_each_says_what_we_do_about_it_and_how_that_is_known(self):
        self.assertGreater(len(self.rows), 20)
        for row in self.rows:
            with self.subTest(row[0]):
                self.assertEqual(len(row), 5, row)
                self.assertRegex(row[2], "^(fixed|shielded|not affected|affects|test only|open)")
                for path in re.findall(r"`((?:tests|deploy|engine|service)/[^`]*)`", " ".join(row)):
                    self.assertTrue((ROOT / path).exists(), path)

    def test_are_of_packages_that_we_have(self):
        sources = {source for _, source, _ in lock.locked().values()}
        for row in self.rows:
            self.assertTrue(row[1] in sources or row[1] in ("sentencepiece", "xgrammar"), row)

    def test_that_are_fixed_are_so_in_the_locked_version(self):
        locked = {source: version for _, source, version in lock.locked().values()} | {"xgrammar": XGRAMMAR[0]}
        for row in self.rows:
            if row[2] == "fixed":
                versions = re.findall(r"\d+(?:\.\d+)+(?:[-+~.\w]*\w)?", row[3])
                self.assertTrue(versions, row)
                for version in versions:
                    self.assertFalse(lock.newer(version, locked[row[1]]), f"{version}: {row}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
