"""Two servers behind a gateway (SMG), which turns OpenAI's HTTP into gRPC.

  gateway.py BUILD_DIR answers     its users get what eta.v1 gives, to the token
  gateway.py BUILD_DIR failures    servers that die, drain and refuse, as its users see them
  gateway.py BUILD_DIR load ...    by hand: what the gateway costs (load.py)
"""

import contextlib
import sys
import tempfile

import answers
import failures
import load
from eta_api import messages
from fleet import Server


def main():
    build, part, *more = sys.argv[1:]
    classes = messages()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:

        def server(name, *flags):
            """A server that starts."""
            return stack.enter_context(Server(build, name, folder, classes)).start(*flags)

        if part == "load":
            load.check(server, folder, [f"--bench={build}/bin/eta-bench", *more])
        else:
            {"answers": answers, "failures": failures}[part].check(server, folder)


if __name__ == "__main__":
    main()
