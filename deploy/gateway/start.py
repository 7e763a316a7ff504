"""Starts SMG with its callers' keys from files: command lines and environments are for others to see.

    start.py [--keys FOLDER] ARGUMENT...     FOLDER has a file for each caller, NAME, with its key in it; the arguments
                                             are those of `smg launch`

Whoever shows such a key may generate. Nobody may change the gateway's servers or flush their caches then: for that SMG
wants a key of another kind (--api-key, --control-plane-api-keys)."""

import argparse
import pathlib
import re
import sys

LEAST = 16  # characters of a key


def keys_of(folder):
    """[NAME:KEY]; raises ValueError. A volume of Kubernetes also holds ..data and the like."""
    found = []
    for file in sorted(pathlib.Path(folder).iterdir()):
        if file.name.startswith("."):
            continue
        if not re.fullmatch(r"[-._a-zA-Z0-9]{1,255}", file.name):
            raise ValueError(f"{file.name!r}: a caller's name has the characters -._a-zA-Z0-9")
        key = file.read_text(encoding="ascii", errors="replace").strip()
        if not re.fullmatch(r"[!-~]{%d,}" % LEAST, key):
            raise ValueError(f"{file.name}: a key has at least {LEAST} printable characters of ASCII, and no spaces")
        found.append(f"{file.name}:{key}")
    if not found:
        raise ValueError("there is no key in it, and nobody could call")
    return found


def main(arguments):
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--keys")
    own, rest = parser.parse_known_args(arguments)
    if own.keys is not None:
        try:
            rest += [word for entry in keys_of(own.keys) for word in ("--tenant-api-key", entry)]
        except (OSError, ValueError) as error:
            sys.exit(f"--keys {own.keys}: {error}")
    from smg.launch_router import launch_router, parse_router_args  # after what costs less is checked

    launch_router(parse_router_args(rest))


if __name__ == "__main__":
    main(sys.argv[1:])
