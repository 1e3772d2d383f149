"""Run one function of this tool on another host, which needs Python and nothing else.

The modules that the function needs travel with the call on standard input, so a node
runs exactly the code of the head. The answer comes back in a frame with a marker that
nobody can guess; whatever a login shell prints around it is no part of it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmspark.runner import quote

# Modules of the standard library alone, in no particular order; a test imports them
# in an interpreter without site-packages.
MODULES = (
    "__init__",
    "errors",
    "fabricfacts",
    "fabrictypes",
    "facts",
    "fingerprint",
    "hostfacts",
    "imageside",
    "leash",
    "linkwatch",
    "netlink",
    "nixside",
    "nodeside",
    "paddeddraft",
    "paths",
    "processes",
    "reach",
    "scene",
    "viewlease",
)
OLDEST_PYTHON = (3, 11)
NO_PYTHON = 97
# Where Python is when the PATH of a non-interactive shell does not have it.
PYTHONS = (
    "python3",
    "/usr/bin/python3",
    "/usr/local/bin/python3",
    "/run/current-system/sw/bin/python3",
    "$HOME/.nix-profile/bin/python3",
    "/nix/var/nix/profiles/default/bin/python3",
    "$HOME/.local/bin/python3",
    "python3.14",
    "python3.13",
    "python3.12",
    "python3.11",
)
# The remote command line. Every shell that people log in with (sh, bash, zsh, fish,
# csh, nushell) reads this one as it stands: no backslash, no "!", one pair of quotes.
# `read` takes single bytes, so what follows the first line is left for Python.
REMOTE_COMMAND = "exec sh -c 'IFS= read -r line && eval \"$line\"'"

# A line, not all of the input: what follows may be the head's lease (glmspark.leash).
_START = (
    "import sys,json;call=json.loads(sys.stdin.readline());"
    "exec(call['loader'],{'call':call})"
)

# Must run on any Python 3, to be able to say that it is too old.
_LOADER = """
import sys, json, importlib, importlib.abc, importlib.util

class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        head, _, rest = name.partition(".")
        key = rest or "__init__"
        if head != "glmspark" or key not in call["modules"]:
            return None
        return importlib.util.spec_from_loader(name, self, is_package=not rest)

    def exec_module(self, module):
        key = module.__name__.partition(".")[2] or "__init__"
        module.__file__ = "<glmspark>/" + key + ".py"
        exec(compile(call["modules"][key], module.__file__, "exec"), module.__dict__)

def answer():
    if sys.version_info < tuple(call["oldest"]):
        version = ".".join(map(str, sys.version_info[:3]))
        return {"error": sys.executable + " is Python " + version}
    sys.meta_path.insert(0, Finder())
    name, _, function = call["function"].partition(":")
    try:
        found = getattr(importlib.import_module(name), function)
        return {"result": found(**call["arguments"])}
    except Exception as error:
        return {"error": type(error).__name__ + ": " + str(error)}

text = json.dumps(answer())
sys.stdout.write("\\n" + call["marker"] + str(len(text)) + "\\n" + text + "\\n")
sys.stdout.flush()
"""


@dataclass(frozen=True)
class Call:
    """A function as ``module:name``, its arguments, and the marker of its answer."""

    function: str
    arguments: Mapping[str, Any]
    marker: str

    @staticmethod
    def of(function: str, arguments: Mapping[str, Any]) -> Call:
        """A call with a marker of its own."""
        return Call(function, arguments, f"glmspark:{secrets.token_hex(16)}:")

    def stdin(self, pythons: Sequence[str] = ()) -> str:
        """What the remote shell reads: one line of sh, then the call for Python.

        ``pythons`` are tried before the usual places.
        """
        here = Path(__file__).parent
        call = {
            "loader": _LOADER,
            "modules": {name: (here / f"{name}.py").read_text() for name in MODULES},
            "oldest": OLDEST_PYTHON,
            "function": self.function,
            "arguments": dict(self.arguments),
            "marker": self.marker,
        }
        return python_line(pythons) + "\n" + json.dumps(call) + "\n"


def python_line(pythons: Sequence[str] = ()) -> str:
    """The line of sh that becomes the first Python that is new enough."""
    places = [quote([one]) for one in pythons] + [f'"{one}"' for one in PYTHONS]
    major, minor = OLDEST_PYTHON
    test = f"import sys;sys.exit(sys.version_info<({major},{minor}))"
    return (
        f"for p in {' '.join(places)}; do "
        'command -v "$p" >/dev/null 2>&1 || continue; '
        f'"$p" -I -S -c {quote([test])} </dev/null >/dev/null 2>&1 || continue; '
        f'exec "$p" -I -S -B -c {quote([_START])}; done; '
        f'echo "no Python {major}.{minor} or newer; login shell ${{SHELL:-unknown}}, '
        f'PATH $PATH" >&2; exit {NO_PYTHON}'
    )


def parse_answer(output: str, marker: str) -> Any:
    """The answer in ``output``, whatever stands around it.

    Raises:
        ValueError: there is no whole answer.
        RuntimeError: the function failed there; its message.
    """
    _, found, rest = output.partition("\n" + marker)
    size, _, text = rest.partition("\n")
    if not found or not size.isdigit() or len(text) < int(size):
        raise ValueError("no answer" if not found else "the answer is cut short")
    answer = json.loads(text[: int(size)])
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer["result"]
