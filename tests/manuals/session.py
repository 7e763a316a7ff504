"""A reader's terminal: a shell, servers in terminals of their own, and a Python session."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

# A reader's Python: blocks are run one after the other, and see one another's names.
PYTHON = """
import os, sys, traceback
names = {"__name__": "__main__"}
for line in sys.stdin:
    path = line.strip()
    code = 0
    sys.stdout = sys.stderr = open(path + ".out", "w", buffering=1)
    try:
        exec(compile(open(path).read(), path, "exec"), names)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.close()
    with open(path + ".code.new", "w") as file:
        file.write(f"{code}\\n")
    os.replace(path + ".code.new", path + ".code")  # whole, once it is there
"""


class Failed(Exception):
    """A step that did not do what its mark says."""


class Session:
    """Runs steps in one folder. Nothing that it started outlives close()."""

    def __init__(self, folder, work, environment, limit):
        # Who runs us in the background ignores Ctrl-C, and what ignores it hands that on to its programs.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.folder, self.work, self.environment, self.limit = folder, Path(work), environment, limit
        self.shell = self.start(["bash", "--norc"], subprocess.PIPE, subprocess.DEVNULL)
        self.python = None
        self.servers = []
        self.count = 0

    def start(self, command, stdin, stdout):
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment, text=True, stdin=stdin, stdout=stdout,
            stderr=stdout, start_new_session=True)

    def close(self):
        self.stop_servers()
        for process in (self.shell, self.python):
            if process:
                kill_group(process, signal.SIGKILL)
                process.stdin.close()
                process.wait()

    def stop_servers(self):
        for server in self.servers:
            kill_group(server, signal.SIGTERM)
        for server in self.servers:
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                kill_group(server, signal.SIGKILL)
                server.wait()
        self.servers = []

    def run(self, step):
        """Runs one step and judges it; the text of what it printed, or Failed."""
        entry = step.entry
        self.count += 1
        path = self.work / f"step{self.count}"
        if entry.kind == "python":
            return self.run_python(step, path)
        if "stop" in entry.words:
            self.stop_servers()
        path.write_text(step.source + "\n")
        (self.work / "input").write_text(entry.options.get("input", ""))
        if entry.kind == "server":
            return self.run_server(step, path)
        if "until" in entry.words:
            return self.run_until(step, path)
        self.tell(self.shell, f"source {path} <{self.work}/input >{path}.out 2>&1; "
                              f"echo $? >{path}.code.new; mv {path}.code.new {path}.code")
        return self.judge(step, path)

    def tell(self, process, line):
        process.stdin.write(line + "\n")
        process.stdin.flush()

    def run_python(self, step, path):
        if not self.python:
            self.python = self.start(["/usr/bin/python3", "-c", PYTHON], subprocess.PIPE,
                                     subprocess.DEVNULL)
        path.write_text(step.source + "\n")
        self.tell(self.python, str(path))
        return self.judge(step, path)

    def background(self, path):
        """The command in a shell of its own that knows what the first one exported."""
        exported = self.work / "exported"
        exported.unlink(missing_ok=True)
        self.tell(self.shell, f"export -p >{exported}.new; mv {exported}.new {exported}")
        self.wait_for(exported.exists, "the shell does not answer", 10)
        out = open(f"{path}.out", "w")
        with out:
            process = self.start(["bash", "-c", f". {exported}; . {path}"], subprocess.DEVNULL, out)
        return process

    def wait_for_text(self, step, path, process):
        def there():
            return step.entry.text in read(path) or process.poll() is not None

        self.wait_for(there, "never printed its text", self.limit)
        if step.entry.text not in read(path):
            raise Failed(f"ended with {process.returncode} and printed:\n{tail(path)}")

    def run_server(self, step, path):
        server = self.background(path)
        self.servers.append(server)
        self.wait_for_text(step, path, server)
        return read(path)

    def run_until(self, step, path):
        process = self.background(path)
        try:
            self.wait_for_text(step, path, process)
            kill_group(process, signal.SIGINT)
            code = process.wait(20)
        except subprocess.TimeoutExpired:
            raise Failed("did not end 20 s after Ctrl-C") from None
        finally:
            kill_group(process, signal.SIGKILL)
            process.wait()
        if code not in (130, -signal.SIGINT):
            raise Failed(f"exit code {code} after Ctrl-C\n{tail(path)}")
        return read(path)

    def judge(self, step, path):
        code_file = Path(f"{path}.code")
        self.wait_for(code_file.exists, f"still runs\n{tail(path)}", self.limit)
        code, expected = int(code_file.read_text() or 1), int(step.entry.options.get("exit", 0))
        if code != expected:
            raise Failed(f"exit code {code}, not {expected}, and printed:\n{tail(path)}")
        name = step.entry.options.get("file")
        printed = (Path(self.folder) / name).read_text() if name else read(path)
        if "quiet" in step.entry.words and printed:
            raise Failed(f"should print nothing, and printed:\n{tail(path)}")
        if step.entry.text not in printed:
            raise Failed(f"'{step.entry.text}' is not in {name or 'what it printed'}:\n{tail(path)}")
        return printed

    def wait_for(self, condition, complaint, limit):
        end = time.monotonic() + limit
        while not condition():
            if self.shell.poll() is not None:
                raise Failed("the command ended the shell")
            if time.monotonic() > end:
                raise Failed(f"after {limit} s: {complaint}")
            time.sleep(0.02)


def kill_group(process, number):
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        pass


def read(path):
    try:
        return Path(f"{path}.out").read_text(errors="replace")
    except FileNotFoundError:
        return ""


def tail(path):
    return "\n".join("    " + line for line in read(path).splitlines()[-12:])
