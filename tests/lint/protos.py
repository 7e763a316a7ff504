"""buf's standard rules over the API: run.sh BUILD_DIR ../lint/protos. Which rules: proto/buf.yaml."""

import os
import pathlib
import subprocess
import sys

PROTOS = pathlib.Path(__file__).resolve().parents[2] / "proto"


def main():
    buf = pathlib.Path(sys.prefix) / "bin" / "buf"
    environment = dict(os.environ, BUF_CACHE_DIR=str(pathlib.Path(sys.prefix) / "cache"))
    sys.exit(subprocess.run([buf, "lint"], cwd=PROTOS, env=environment, check=False).returncode)


main()
