#!/usr/bin/env python3
"""What llama_cpp.py and the files beside it do before and after anything is timed."""
import contextlib
import io
import json
import lzma
import math
import os
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

HERE = pathlib.Path(__file__).parent
sys.path += [str(HERE), str(HERE.parent / "oracles")]

import llama_cpp
import llama_kl
import llama_native
import llama_peers
import llama_server
import llama_types


def refusal(function, *arguments):
    """What a call says as it ends the program."""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            function(*arguments)
    except SystemExit as ended:
        return errors.getvalue() + str(ended.code)
    raise AssertionError("the program goes on")


def program(folder, script, name="program"):
    """The path of an executable with these lines of shell."""
    path = pathlib.Path(folder) / name
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return path


class Flags(unittest.TestCase):
    def test_defaults(self):
        flags = llama_cpp.parse_flags(["build"])
        self.assertEqual((flags.build, flags.flash, flags.types), ("wheel", ["on", "off"], None))
        self.assertEqual((flags.tokens, flags.streams), ([512, 2048, 4096, 7936], [1, 4]))
        self.assertEqual((flags.speculation, flags.attention), ("off", "full"))

    def test_bad_ones_are_named(self):
        for flag, value, limit in (("--tokens", "512,0", "from 1 on"), ("--streams", "1,", "from 1 on"),
                                   ("--tokens", "many", "from 1 on"), ("--turns", "0", "below 1"),
                                   ("--answer", "-1", "below 1"), ("--cpus", "0-1", "from 0 on"), ("--types", "Q5_0", "Q4_K_M"),
                                   ("--types", "Q8_0,Q8_0", "each once"), ("--flash", "auto", "on,off")):
            said = refusal(llama_cpp.parse_flags, ["build", f"{flag}={value}"])
            self.assertIn(f"argument {flag}: {value.strip(',')}", said)
            self.assertIn(limit, said)

    def test_something_is_left_to_compare_with(self):
        self.assertIn("--build=native", refusal(llama_cpp.parse_flags, ["build", "--without_wheel"]))
        llama_cpp.parse_flags(["build", "--build=native", "--without_wheel"])


class Text(unittest.TestCase):
    def test_no_stretch_begins_as_another(self):
        stretches = llama_cpp.Stretches(list(range(100)))
        self.assertEqual(len({stretches.take(30)[0] for _ in range(20)}), 20)

    def test_a_prompt_fits(self):
        self.assertIn("101 tokens", refusal(llama_cpp.Stretches(list(range(100))).take, 101))


class Table(unittest.TestCase):
    row = {"type": "Q8_0", "streams": 1, "tokens": 512,
           "prefill": {"ours": 3000.0, "wheel on": 400.0, "native on": 1000.0, "wheel off": 500.0,
                       "native off": 900.0},
           "decode": {"ours": 150.0, "wheel on": 75.0, "native on": 60.0, "wheel off": 50.0,
                      "native off": 70.0}}

    def test_the_ratio_is_to_the_fastest(self):
        self.assertEqual(llama_cpp.fastest(self.row["prefill"]), ("native on", 1000.0))
        self.assertEqual(llama_cpp.fastest(self.row["prefill"], "wheel"), ("wheel off", 500.0))
        self.assertIn("|  3.00 of native on", llama_cpp.line_of(self.row, "prefill"))
        self.assertIn("|  2.00 of wheel on", llama_cpp.line_of(self.row, "decode"))
        self.assertEqual(
            llama_cpp.table([self.row]).splitlines()[-1],
            "| Q8_0 | 1 | 512 | 3000 | 500 (off) | 1000 (on) | 3.00 | 150.0 | 75.0 (on) | 70.0 (off) | 2.00 |")

    def test_every_row_has_a_cell_for_each_column(self):
        lines = llama_cpp.table([self.row, self.row]).splitlines()
        self.assertEqual({line.count("|") for line in lines}, {12})


class Barrier(unittest.TestCase):
    def source(self, text):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        file = pathlib.Path(folder.name) / llama_native.BARRIER_FILE
        file.parent.mkdir(parents=True)
        file.write_text(text)
        return pathlib.Path(folder.name), file

    def test_stands_before_the_call_once(self):
        source, file = self.source("f() {\n    _tile_loadconfig(&tc);\n}\n")
        for _ in range(2):
            llama_native.add_barrier(source)
            self.assertEqual(file.read_text(), "f() {\n" + llama_native.BARRIER
                             + "    _tile_loadconfig(&tc);\n}\n")

    def test_sources_that_changed_are_refused(self):
        for calls in (0, 2):
            source, _ = self.source("    _tile_loadconfig(&tc);\n" * calls)
            self.assertIn(f"mmq.cpp: {calls} places", refusal(llama_native.add_barrier, source))

    def test_the_probe_compiles(self):
        if os.uname().machine != "x86_64":
            return  # nothing else is probed
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "probe.cc"
            file.write_text(llama_native.PROBE)
            llama_native.output_of(llama_native.compiler(), "-O3", "-mamx-tile", "-Wall", "-Werror",
                                   "-c", "-o", os.devnull, file)


class Library(unittest.TestCase):
    def test_is_kept_for_programs_of_our_own(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            files = ["source/include/llama.h", "source/ggml/include/ggml.h",
                     *(f"work/{library}" for library in llama_native.LIBRARIES)]
            for file in files:
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                (folder / file).write_text(file)
            for _ in range(2):  # the second time what is there is replaced
                llama_native.keep_library(folder / "source", folder / "work", folder)
            self.assertEqual(sorted(path.name for path in (folder / "include").iterdir()),
                             ["ggml.h", "llama.h"])
            self.assertEqual(len(list((folder / "lib").iterdir())), len(llama_native.LIBRARIES))


class Divergence(unittest.TestCase):
    """llama_kl.py."""

    native = {"n": 1024, "perplexity": {"value": 10.0}}
    ours = {"n": 1024, "perplexity": {"value": 10.1}, "kl": {"value": 0.021},
            "top_1": {"value": 0.96}}

    def theirs(self, **other):
        return {"tokens": 1024, "kl": 0.02, "top_1": 0.95, "model_loss": math.log(10.0),
                "loss": math.log(10.2)} | other

    def test_flags(self):
        flags = llama_kl.parse_flags(["build"])
        self.assertEqual((flags.types, flags.flash), (["Q4_0", "Q4_1", "Q4_K_M", "Q8_0"], ["on", "off"]))
        self.assertGreaterEqual(flags.windows * flags.context // 2, 10_000)
        self.assertTrue(flags.text.is_file())

    def test_bad_flags_are_named(self):
        for flag, value, limit in (("--types", "Q5_0", "Q4_K_M"), ("--flash", "auto", "on,off"),
                                   ("--context", "2", "below 4"), ("--context", "511", "odd"),
                                   ("--windows", "0", "below 1"), ("--threads", "0", "below 1"),
                                   ("--text", "a.jsonl", "no .txt")):
            said = refusal(llama_kl.parse_flags, ["build", f"{flag}={value}"])
            self.assertIn(f"argument {flag}: {value}", said)
            self.assertIn(limit, said)

    def test_a_model_of_fewer_bits_is_refused(self):
        for kind in ("Q8_0", "unknown"):
            with unittest.mock.patch.object(llama_types, "type_of", lambda path: kind):
                said = refusal(llama_kl.check_wide, pathlib.Path("m.gguf"))
                self.assertIn(f"m.gguf is {kind}", said)
        for kind in ("F16", "BF16", "ALL_F32"):
            with unittest.mock.patch.object(llama_types, "type_of", lambda path: kind):
                llama_kl.check_wide(pathlib.Path("m.gguf"))

    def test_the_ratio_is_to_the_smaller_divergence(self):
        row = llama_kl.compare("Q4_1", self.native, self.ours,
                               {"on": self.theirs(), "off": self.theirs(kl=0.03)})
        self.assertAlmostEqual(row["ratio"], 1.05)
        lines = llama_kl.table([row, row]).splitlines()
        self.assertEqual({line.count("|") for line in lines}, {10})
        self.assertEqual(lines[-1], "| Q4_1 | 1024 | 0.021000 | 0.020000 | 0.030000 | 1.050 | "
                         "96.00 % | 95.00 % | 95.00 % |")

    def test_other_rows_are_not_compared(self):
        for other, words in (({"tokens": 1023}, "1023 tokens"),
                             ({"model_loss": math.log(10.1)}, "10.1000, this engine's 10.0000")):
            self.assertIn(words, refusal(llama_kl.compare, "Q4_1", self.native, self.ours,
                                         {"off": self.theirs(**other)}))

    def test_a_packed_text_is_unpacked(self):
        with tempfile.TemporaryDirectory() as folder:
            packed = pathlib.Path(folder) / "a.txt.xz"
            packed.write_bytes(lzma.compress(b"one two"))
            text = llama_kl.unpacked(packed, folder)
            self.assertEqual((text.name, text.read_bytes()), ("a.txt", b"one two"))
            self.assertEqual(llama_kl.unpacked(text, folder), text)

    def test_programs_are_asked_for_the_same_rows(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "bin").mkdir()
            rows = {"rows": [{"weights": "f.gguf", "attention": "full"}]}
            program(folder / "bin", f"echo \"$@\" >{folder}/ours\nfor last; do :; done\n"
                    f"echo '{json.dumps(rows)}' >${{last#--json=}}\n", "eta-eval")
            theirs = program(folder, f"echo \"$@\" >{folder}/theirs\necho '{{\"kl\": 1}}'\n")
            flags = llama_kl.parse_flags([name, "--context=64", "--windows=3", "--threads=2"])
            _, found = llama_kl.measure_ours(flags, "m.gguf", ["f.gguf"], "a.txt", folder)
            self.assertEqual(found, {("f.gguf", "full"): rows["rows"][0]})
            self.assertEqual(llama_kl.measure_theirs(flags, theirs, "m.gguf", "f.gguf", "a.txt", "on"),
                             {"kl": 1})
            said = (folder / "ours").read_text()
            for words in ("--against=f.gguf", "--context=64", "--samples=3", "--threads=2"):
                self.assertIn(words, said)
            self.assertEqual((folder / "theirs").read_text(), "m.gguf f.gguf a.txt 64 3 2 on\n")
            failing = program(folder, "exit 2\n")
            self.assertIn("llama.cpp ended with 2", refusal(
                llama_kl.measure_theirs, flags, failing, "m.gguf", "f.gguf", "a.txt", "on"))


class Programs(unittest.TestCase):
    def test_a_server_that_ends_says_why(self):
        with tempfile.TemporaryDirectory() as folder:
            path = program(folder, "echo no such model >&2\nexit 3\n")
            with self.assertRaisesRegex(RuntimeError, "ended with 3:\nno such model"):
                llama_server.BuiltLlamaServer(path, "x.gguf", context=8)

    def test_a_server_is_ready_once_it_listens(self):
        with tempfile.TemporaryDirectory() as folder:
            path = program(folder, "sleep 0.3\necho 'I main: listening on http://127.0.0.1:99' >&2\n"
                           "exec sleep 60\n")
            server = llama_server.BuiltLlamaServer(path, "x.gguf", context=8)
            self.assertEqual(server.address, "http://127.0.0.1:99")
            server.close()
            self.assertIsNotNone(server.process.returncode)

    def test_this_server_is_timed_by_what_it_says(self):
        with tempfile.TemporaryDirectory() as folder:
            binaries = pathlib.Path(folder) / "bin"
            binaries.mkdir()
            program(binaries, "echo listening on 127.0.0.1:9\nexec sleep 60\n", "eta-server")
            program(binaries, "echo '{\"delta\":{\"token_ids\":[5,6]}}'\n"
                    "echo '{\"finished\":{\"timing\":{\"first_token\":\"0.5s\",\"decode\":\"2s\"}}}'\n",
                    "etactl")
            flags = llama_cpp.parse_flags([folder, "--cpus=0"])
            ours = llama_peers.Ours(flags, "x.gguf", threads=1, context=8, streams=2)
            self.assertEqual(ours.answer([1, 2], 2), ([5, 6], 0.5, 2.5))
            self.assertEqual(ours.measure([[1], [2]], 2), (0.5, 2.0))
            ours.close()

    def test_this_server_says_why_it_ends(self):
        with tempfile.TemporaryDirectory() as folder:
            binaries = pathlib.Path(folder) / "bin"
            binaries.mkdir()
            program(binaries, "echo no room for the cache >&2\nexit 1\n", "eta-server")
            flags = llama_cpp.parse_flags([folder, "--cpus=0"])
            said = refusal(lambda: llama_peers.Ours(flags, "x.gguf", threads=1, context=8, streams=1))
            self.assertIn("no room for the cache", said)

    def test_a_type_is_made_once(self):
        with tempfile.TemporaryDirectory() as folder:
            made = pathlib.Path(folder) / "made"
            made.mkdir()
            base = pathlib.Path(folder) / "m.Q4_1.gguf"
            base.write_bytes(b"model")
            quantize = program(folder, f'echo x >>{folder}/calls\ncp "$2" "$3"\n')
            with unittest.mock.patch.object(llama_types, "type_of", lambda path: "Q4_1"):
                self.assertEqual(llama_types.as_type("Q4_1", base, made, None), base)
                self.assertIn("--build=native", refusal(llama_types.as_type, "Q4_0", base, made, None))
                for _ in range(2):
                    path = llama_types.as_type("Q4_0", base, made, quantize)
                    self.assertRegex(path.name, r"^m-[0-9a-f]{8}\.Q4_0\.gguf$")
                    self.assertEqual(path.read_bytes(), b"model")
                self.assertEqual((pathlib.Path(folder) / "calls").read_text(), "x\n")
                failing = program(folder, "echo bad tensor\nexit 1\n")
                self.assertIn("bad tensor", refusal(llama_types.as_type, "Q8_0", base, made, failing))
                self.assertEqual(list(made.iterdir()), [path])


if __name__ == "__main__":
    unittest.main()
