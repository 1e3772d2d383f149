"""The one place where the tool runs other programs, here or over ssh."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from glmspark.errors import CommandError

# Non-interactive, bounded, and never a question: an unknown or changed host key, or a
# key that is not accepted, is an answer that the caller shows.
SSH_OPTIONS = (
    "-oBatchMode=yes",
    "-oConnectTimeout=10",
    "-oServerAliveInterval=5",
    "-oServerAliveCountMax=3",
    "-oStrictHostKeyChecking=yes",
)


@dataclass(frozen=True)
class Command:
    """A program to run: argv, what its environment adds, and on which host.

    ``host`` is an ssh target, or "local". ``secrets`` maps environment names to values
    that are handed over by environment (here) or on standard input (ssh), and are
    never shown.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    host: str = "local"
    stdin: str = ""
    timeout_s: float = 60.0
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    def shown(self) -> str:
        """The command as a line that could be typed, secrets masked."""
        env = [f"{name}={value}" for name, value in self.env.items()]
        env += [f"{name}=***" for name in self.secrets]
        words = [*env, *self.argv]
        if self.host != "local":
            words = ["ssh", self.host, "--", *words]
        return quote(words)


@dataclass(frozen=True)
class Result:
    """What a program left: its exit status and its output."""

    code: int
    stdout: str
    stderr: str


class Runner(Protocol):
    """Runs commands; the tests' one remembers them instead."""

    def run(self, command: Command) -> Result:
        """The result of ``command``, whatever its exit status."""
        ...


def quote(words: Sequence[str]) -> str:
    """``words`` as one line that a POSIX shell splits into the same words again."""
    return shlex.join(words)


def build_argv(command: Command) -> tuple[str, ...]:
    """The local argv that runs ``command`` on its host.

    Over ssh the remote side gets one line for `sh -c`, so that a login shell such as
    fish does not read our quoting; secrets are no part of it.
    """
    if command.host == "local":
        return command.argv
    env = [f"{name}={value}" for name, value in command.env.items()]
    inner = quote(["env", *env, *command.argv] if env else command.argv)
    return ("ssh", *SSH_OPTIONS, command.host, quote(["sh", "-c", inner]))


class ProcessRunner:
    """Runs commands as child processes of this one."""

    def run(self, command: Command) -> Result:
        """The result of ``command``; its output is decoded leniently.

        Raises:
            CommandError: the program does not exist, or it took too long.
        """
        env = {**os.environ, **command.env, **command.secrets}
        try:
            done = subprocess.run(
                build_argv(command),
                env=env,
                input=command.stdin,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=command.timeout_s,
                check=False,
            )
        except FileNotFoundError as error:
            raise CommandError(
                f"cannot run {command.argv[0]}: no such program", node=command.host
            ) from error
        except subprocess.TimeoutExpired as error:
            raise CommandError(
                f"no answer in {command.timeout_s:.0f} s from: {command.shown()}",
                node=command.host,
            ) from error
        return Result(done.returncode, done.stdout, done.stderr)


def check(runner: Runner, command: Command) -> Result:
    """The result of ``command``, which must succeed.

    Raises:
        CommandError: with the command, its exit status and its last words.
    """
    result = runner.run(command)
    if result.code != 0:
        said = (result.stderr or result.stdout).strip().splitlines()
        raise CommandError(
            f"exit status {result.code} from: {command.shown()}"
            + (f": {said[-1]}" if said else ""),
            node=command.host,
        )
    return result
