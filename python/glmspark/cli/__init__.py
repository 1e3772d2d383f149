"""The ``glmspark`` command: a lazy Click group, and where errors become exit codes."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from typing import Any, NoReturn

import click

from glmspark import __version__
from glmspark.errors import ConfigError, ExitCode, GlmSparkError

# command -> (module below glmspark.cli, one line of help). A module is imported when
# its command runs, so that `--version` and `plan` do not pay for the others.
COMMANDS: dict[str, tuple[str, str]] = {
    "completion": ("completion", "Print a shell's completion script."),
    "config": ("config", "Check and show the settings."),
    "doctor": ("doctor", "Look at every node and say what is in the way."),
    "init": ("init", "Write kit.toml from what the nodes show."),
    "logs": ("logs", "Print what the ranks print."),
    "node": ("node", "Look at this node, or run its part of a kit."),
    "plan": ("plan", "Print what a start would do."),
    "profile": ("profile", "list, show and compare serving profiles"),
    "rank": ("rank", ""),
    "report": ("report", "Bundle what is known into one redacted file."),
    "restart": ("restart", "Check everything, then stop and start anew."),
    "rollback": ("rollback", "Go back to what served before."),
    "roofline": ("roofline", "what memory and link allow, in tokens a second"),
    "start": ("start", "Bring the kit to serve."),
    "status": ("status", "Say what the kit does."),
    "stop": ("stop", "End every rank and prove it."),
    "weights": ("weights", "Fetch, verify, share and carry the weights."),
}


class LazyGroup(click.Group):
    """A group whose commands live in modules that are imported on use.

    ``table`` maps a command's name to its module below ``glmspark.cli`` and its one
    line of help; the module's attribute ``command`` is the Click command.
    """

    def __init__(self, *, table: dict[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """All command names, sorted."""
        return sorted(self.table)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002
        cmd_name: str,
    ) -> click.Command | None:
        """The command of that name, imported now; None where there is none."""
        if cmd_name not in self.table:
            return None
        module = importlib.import_module(f"glmspark.cli.{self.table[cmd_name][0]}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is meant; a wrong name gets the nearest one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib  # takes time to load, and few need it

            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not near or "?" in error.message:
                raise
            message = f"{error.message} Did you mean {near[0]!r}?"
            raise click.UsageError(message, ctx) from error

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the command list from the table, so that --help imports no command."""
        # Without a line of help a command is internal.
        rows = [(name, self.table[name][1]) for name in self.list_commands(ctx)]
        rows = [row for row in rows if row[1]]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
    },
)
@click.version_option(__version__, prog_name="glmspark")
def cli() -> None:
    """Serve GLM-5.3-Flash (EXL3) on DGX Sparks, or as two CPU ranks on this machine."""


def _report(error: GlmSparkError) -> None:
    where = f"[{error.node}] " if error.node else ""
    with suppress(OSError, ValueError):  # the exit status says it where nobody reads
        click.echo(f"error: {where}{error}", err=True)
        if error.hint:
            click.echo(f"hint: {error.hint}", err=True)


def _failed(error: BaseException) -> int:
    """The exit status for ``error``, after saying it; re-raises what is a bug."""
    match error:
        case click.exceptions.Exit():
            return error.exit_code
        case click.Abort() | KeyboardInterrupt():
            click.echo("interrupted", err=True)
            return ExitCode.INTERRUPTED
        case click.ClickException():
            error.show()
            return ExitCode.USAGE
        case BrokenPipeError():  # the reader (`| head`) has gone: no failure of ours
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return ExitCode.DONE
        case _ if os.environ.get("GLMSPARK_DEBUG") == "1":
            raise error
        case GlmSparkError():
            _report(error)
            return error.exit_code
        case OSError():
            _report(_unusable(error))
            return ExitCode.CONFIG
    raise error


def _unusable(error: OSError) -> ConfigError:
    """A file, folder or stream that cannot be used, as a sentence."""
    what = f"{error.filename!r}" if error.filename else "a file or stream"
    return ConfigError(
        f"cannot use {what}: {error.strerror or error}",
        hint="GLMSPARK_DEBUG=1 shows where; paths.state and paths.cache name folders",
    )


def run(argv: list[str] | None = None) -> int:
    """Run the command line ``argv`` and give its exit status; see :class:`ExitCode`.

    Anything but the failures named in ``glmspark.errors`` is a bug and is raised,
    which Python reports with a traceback and exit status 1.
    """
    try:
        result = cli.main(args=argv, prog_name="glmspark", standalone_mode=False)
    except SystemExit:
        # Click's own answer to a reader that has gone (`| head`) is status 1.
        if type(sys.stdout).__name__.endswith("PacifyFlushWrapper"):
            return ExitCode.DONE
        raise
    except (click.ClickException, click.Abort, click.exceptions.Exit) as error:
        return _failed(error)
    except (GlmSparkError, KeyboardInterrupt, OSError) as error:
        return _failed(error)
    return result if isinstance(result, int) else ExitCode.DONE


def main() -> NoReturn:
    """Entry point of the ``glmspark`` script."""
    sys.exit(run())
