#!/usr/bin/env python3
"""Writes the dashboards of deploy/grafana/dashboards from deploy/grafana/source.

generate.py          writes them
generate.py --check  only says whether they are up to date
"""

import importlib
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
BOARDS = ("service", "engine", "sparsity", "tenants", "overload", "calibrations")


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(HERE / "source"))
    stale = []
    for name in BOARDS:
        board = importlib.import_module(name).build()
        text = json.dumps(board, indent=1, ensure_ascii=False) + "\n"
        path = HERE / "dashboards" / f"{board['uid']}.json"
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path.name)
        if not check:
            path.write_text(text, encoding="utf-8")
    if check and stale:
        sys.exit(f"run deploy/grafana/generate.py: out of date: {', '.join(stale)}")
    print(
        f"dashboards: {len(BOARDS)} up to date"
        if check
        else f"written: {', '.join(stale) or 'nothing'}"
    )


if __name__ == "__main__":
    main()
