"""The command line: whole outputs, exit codes, help, completion, start-up."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from glmspark import __version__
from glmspark import cli as cli_module
from glmspark.cli import COMMANDS, cli, run
from glmspark.errors import (
    CommandError,
    ConfigError,
    ExitCode,
    GlmSparkError,
    IntegrityError,
    NotReadyError,
    PreflightError,
)

from tests.conftest import REPOSITORY

Capture = pytest.CaptureFixture[str]


def test_version(capsys: Capture) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"glmspark, version {__version__}\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (GlmSparkError("x"), 1),
        (click.UsageError("x"), 2),
        (ConfigError("x"), 3),
        (PreflightError("x"), 4),
        (CommandError("x"), 5),
        (NotReadyError("x"), 6),
        (IntegrityError("x"), 7),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
    ],
)
def test_each_failure_has_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(cli_module.cli, "main", fail)
    assert run([]) == code


def test_every_code_is_tried_above() -> None:
    assert {int(code) for code in ExitCode} == {0, 1, 2, 3, 4, 5, 6, 7, 130}


def test_a_bug_is_shown_with_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cli_module.cli, "main", fail)
    with pytest.raises(ZeroDivisionError):
        run([])


def test_an_error_is_a_sentence_with_node_and_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def fail(**_: object) -> None:
        raise CommandError("no answer", hint="ping it", node="spark-2")

    monkeypatch.setattr(cli_module.cli, "main", fail)
    run([])
    assert capsys.readouterr() == ("", "error: [spark-2] no answer\nhint: ping it\n")


def test_debug_shows_where_an_error_was_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GLMSPARK_DEBUG", "1")
    with pytest.raises(ConfigError):
        run(["config", "check", "none.toml"])


@pytest.mark.parametrize(
    "argv",
    [
        ["config", "check", "a" * 300],
        ["status", "--set", "paths.state=/tmp/" + "a" * 300],
        ["start", "--kit", "~nosuchuser/kit.toml"],
        ["plan", "--set", "paths.state=~nosuchuser/x"],
        ["plan", "--set", 'serve.name="a\\u0000b"'],
        ["plan", "--set", "serve.port=" + "9" * 5000],
    ],
)
def test_names_that_no_system_takes_are_configuration_errors(
    argv: list[str], capsys: Capture
) -> None:
    assert run(argv) == 3
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize("text", ["port = " + "9" * 5000, "a = " + "[" * 5000])
def test_toml_that_no_parser_takes(text: str, capsys: Capture) -> None:
    Path("kit.toml").write_text(text)
    assert run(["config", "check"]) == 3
    assert "is not valid TOML" in capsys.readouterr().err


def test_a_folder_that_cannot_be_used_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def fail(**_: object) -> None:
        raise OSError(28, "No space left on device", "/x/state.json")

    monkeypatch.setattr(cli_module.cli, "main", fail)
    assert run([]) == 3
    said = capsys.readouterr().err
    assert "cannot use '/x/state.json': No space left on device" in said


def test_a_wrong_command_gets_the_nearest_name(capsys: Capture) -> None:
    assert run(["strat"]) == 2
    assert "start" in capsys.readouterr().err


def test_usage_errors_are_2(capsys: Capture) -> None:
    assert run(["no-such-command"]) == 2
    assert run(["start", "--no-such-option"]) == 2
    assert "No such option" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0
    assert result.output.startswith("Usage: cli ")
    text = result.output.split("\n\n")[1].strip()
    assert len(text) > 15


def test_group_help_lists_what_is_public_and_imports_nothing() -> None:
    result = CliRunner().invoke(cli, ["--help"])
    for name, (_, line) in COMMANDS.items():
        assert (f"  {name} " in result.output) == bool(line)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == 0 and "_GLMSPARK_COMPLETE" in result.output


def test_config_check(capsys: Capture) -> None:
    Path("kit.toml").write_text("name = 'mine'\n")
    assert run(["config", "check"]) == 0
    assert capsys.readouterr().out == "kit.toml: valid, kit mine\n"
    Path("kit.toml").write_text("nam = 'mine'\n")
    assert run(["config", "check"]) == 3
    said = capsys.readouterr().err
    assert said.startswith(
        "error: kit.toml:1: nam is no setting; did you mean name? (allowed here: name,"
    )
    assert said.endswith("hint: `glmspark config schema` describes every setting\n")


def test_config_show_names_origins(capsys: Capture) -> None:
    assert run(["config", "show", "--set", "serve.port=9000"]) == 0
    rows = [row.split() for row in capsys.readouterr().out.splitlines()]
    assert ["serve.port", "9000", "command", "line"] in rows
    assert run(["config", "show", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["serve.port"] == {"value": 8888, "origin": "default"}


def test_config_schema_is_json(capsys: Capture) -> None:
    assert run(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["properties"]["topology"]
    assert schema["additionalProperties"] is False


def test_values_from_the_environment_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("GLMSPARK_SERVE_PORT", "9001")
    assert run(["plan"]) == 0
    out, err = capsys.readouterr()
    assert "note: serve.port comes from environment GLMSPARK_SERVE_PORT" in err
    assert "--port 9001" in out


def test_plan_masks_nothing_but_secrets(capsys: Capture) -> None:
    assert run(["plan", "--set", "auth.mode=key"]) == 0
    assert "VLLM_API_KEY=*** (from " in capsys.readouterr().out


def test_node_probe(capsys: Capture) -> None:
    assert run(["node", "probe", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["memory"]["MemTotal"] > 0 and facts["cores"] > 0
    assert run(["node", "probe"]) == 0
    assert capsys.readouterr().out.startswith("hostname ")


def test_a_node_that_cannot_be_asked_keeps_the_kit_from_starting(
    capsys: Capture,
) -> None:
    node = "{ name = '%s', ssh = '%s', fabric = '10.0.0.%d', netdev = 'e' }"
    nodes = f"nodes = [{node % ('a', 'local', 1)}, {node % ('b', 'me@b.invalid', 2)}]\n"
    Path("kit.toml").write_text("topology = 'tp2'\nengine = 'stub'\n" + nodes)
    assert run(["plan"]) == 0
    assert run(["start"]) == 4
    assert "[b] node.reach: the name b.invalid is not known" in capsys.readouterr().err


def test_ranks_are_started_from_the_head(capsys: Capture) -> None:
    node = "{ name = '%s', ssh = '%s', fabric = '10.0.0.%d', netdev = 'e' }"
    nodes = f"nodes = [{node % ('a', 'me@a', 1)}, {node % ('b', 'local', 2)}]\n"
    Path("kit.toml").write_text("topology = 'tp2'\nengine = 'stub'\n" + nodes)
    assert run(["start"]) == 3
    assert "[a] the head a is reached by ssh (me@a)" in capsys.readouterr().err


def test_a_reader_that_leaves_is_no_failure() -> None:
    tool = f"{shlex.quote(sys.executable)} -m glmspark"
    line = f"{tool} config schema | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", line],
        env={"PYTHONPATH": str(REPOSITORY / "python"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["{", "0"] and done.stderr == ""


@pytest.mark.parametrize(
    ("argv", "absent"),
    [
        (["--version"], ["pydantic", "rich", "http.client", "huggingface_hub"]),
        (["plan"], ["rich", "http.client", "huggingface_hub", "aiohttp", "asyncio"]),
        (["rank", "--help"], ["pydantic_core._x", "rich", "aiohttp"]),
    ],
)
def test_commands_import_no_more_than_they_need(
    argv: list[str], absent: list[str]
) -> None:
    code = (
        "import sys, io, contextlib\n"
        "from glmspark.cli import run\n"
        "with contextlib.redirect_stdout(io.StringIO()): run(sys.argv[1:])\n"
        "print(' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *argv],
        env={"PYTHONPATH": str(REPOSITORY / "python"), "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.split())
    assert [name for name in absent if name in loaded] == []


def test_doctor_looks_at_the_rest_where_the_kit_names_no_engine(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from glmspark.cli import run

    words = ["doctor", "--json", "--set", "runtime=oci", "--set", "engine=stub"]
    assert run(words) == 4
    said = json.loads(capsys.readouterr().out)
    (found,) = [one for one in said["findings"] if one["check"] == "engine.image"]
    assert found["seen"] == "runtime is oci, and the kit names no image"
    assert said["nodes"]
