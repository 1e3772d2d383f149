"""Write a JSON object as TOML: to_toml.py IN.json OUT.toml."""

import json
import sys
from pathlib import Path
from typing import Any


def _key(name: str) -> str:
    bare = name.replace("-", "").replace("_", "")
    return name if bare.isascii() and bare.isalnum() else json.dumps(name)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items())
        return "{" + inner + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    if value is None:
        raise SystemExit("TOML has no null: leave the setting out")
    return json.dumps(value, ensure_ascii=False)


def _table(data: dict[str, Any], path: list[str], lines: list[str]) -> None:
    lines += [f"{_key(k)} = {_value(v)}" for k, v in data.items() if _is_plain(v)]
    for name, value in data.items():
        here = [*path, _key(name)]
        if isinstance(value, dict):
            lines += ["", f"[{'.'.join(here)}]"]
            _table(value, here, lines)
        elif not _is_plain(value):
            for row in value:
                lines += ["", f"[[{'.'.join(here)}]]"]
                _table(row, here, lines)


def _is_plain(value: Any) -> bool:
    rows = isinstance(value, list) and bool(value) and isinstance(value[0], dict)
    return not isinstance(value, dict) and not rows


if __name__ == "__main__":
    out: list[str] = []
    _table(json.loads(Path(sys.argv[1]).read_text()), [], out)
    Path(sys.argv[2]).write_text("\n".join(out).lstrip("\n") + "\n")
