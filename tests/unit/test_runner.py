"""Commands: one quoting function, secrets out of sight, failures in words."""

from __future__ import annotations

import subprocess

import pytest
from glmspark.errors import CommandError
from glmspark.runner import Command, ProcessRunner, Result, build_argv, check, quote

NASTY = ["a b", "it's", '"', "$HOME", "`id`", "\\", "*", "", "ü", "-n", ";", "\n"]


class FakeRunner:
    """Remembers the commands and answers as it was told to."""

    def __init__(self, *results: Result) -> None:
        self.commands: list[Command] = []
        self.results = list(results)

    def run(self, command: Command) -> Result:
        self.commands.append(command)
        return self.results.pop(0) if self.results else Result(0, "", "")


def test_quoted_words_come_out_of_a_shell_as_they_went_in() -> None:
    line = quote(["printf", "%s\\0", *NASTY])
    done = subprocess.run(["sh", "-c", line], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == NASTY


def test_what_ssh_sends_survives_two_shells() -> None:
    command = Command(("printf", "%s\\0", *NASTY), env={"A": "x y"}, host="me@there")
    argv = build_argv(command)
    assert argv[0] == "ssh" and argv[-2] == "me@there"
    assert "-oBatchMode=yes" in argv and "-oStrictHostKeyChecking=yes" in argv
    done = subprocess.run(["sh", "-c", argv[-1]], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == NASTY


def test_a_local_command_is_its_argv() -> None:
    assert build_argv(Command(("a", "b c"))) == ("a", "b c")


def test_secrets_are_not_shown_and_not_in_argv() -> None:
    command = Command(("tool",), env={"A": "1"}, host="h", secrets={"KEY": "s3cret"})
    assert "s3cret" not in command.shown() + repr(command)
    assert "KEY=***" in command.shown()
    assert "s3cret" not in " ".join(build_argv(command))


def test_the_environment_is_added_to_ours() -> None:
    command = Command(
        ("sh", "-c", 'echo "$A $KEY"'), env={"A": "1"}, secrets={"KEY": "2"}
    )
    assert ProcessRunner().run(command) == Result(0, "1 2\n", "")


def test_stdin_is_handed_over() -> None:
    assert ProcessRunner().run(Command(("cat",), stdin="words")).stdout == "words"


def test_no_such_program() -> None:
    with pytest.raises(CommandError, match="cannot run no-such-program") as caught:
        ProcessRunner().run(Command(("no-such-program",)))
    assert caught.value.exit_code == 5


def test_a_command_that_takes_too_long() -> None:
    with pytest.raises(CommandError, match=r"no answer in 0 s from: sleep 60"):
        ProcessRunner().run(Command(("sleep", "60"), timeout_s=0.2))


def test_check_wants_success_and_says_the_last_word() -> None:
    runner = FakeRunner(Result(3, "", "first\nlast words\n"))
    with pytest.raises(CommandError, match=r"exit status 3 from: tool x: last words"):
        check(runner, Command(("tool", "x")))
    assert check(FakeRunner(), Command(("tool",))).code == 0
