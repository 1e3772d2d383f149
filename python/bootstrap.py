"""Make ``.venv`` of this checkout: ``python3 bootstrap.py engine`` or ``... check``.

``engine`` brings the CPU engine and the tool, ``check`` also what ``make check`` needs.
Needs nothing but Python: no compiler, no installed package. What is there already is
kept; a second run after a failure goes on where the first one stopped. The exit status
is one of ``glmspark.errors.ExitCode``.

This file alone must parse on any Python 3, to say which one is needed.
"""

import sys

NEEDED = (3, 11)


def refuse_old_python(found: str) -> int:
    """Say in one sentence which Python is needed; gives exit status 3."""
    sys.stderr.write(
        "error: glmspark needs Python %d.%d or newer and this is Python %s\n"  # noqa: UP031
        "hint: sudo apt-get install python3.11 python3.11-venv"
        " (another one: make PYTHON=/path/to/python3 ...)\n" % (*NEEDED, found)
    )
    return 3


def run() -> int:
    """Exit status of setting up what the command line names, or of the refusal."""
    if sys.version_info < NEEDED:
        return refuse_old_python(sys.version.split()[0])
    from venv_setup.command import main

    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(run())
