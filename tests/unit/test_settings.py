"""Settings: their order, their origins, and what a mistake in them says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from glmspark.errors import ConfigError
from glmspark.settings import known_keys, load_settings, show_rows
from glmspark.tomlplace import line_of

PAIR = """\
topology = "tp2"
engine = "vllm-cpu"
[[nodes]]
name = "a"
fabric = "10.0.0.1"
netdev = "veth0"
[[nodes]]
name = "b"
fabric = "10.0.0.2"
netdev = "veth0"
"""


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "kit.toml"
    path.write_bytes(text.encode())
    return str(path)


def message(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(write(tmp_path, text), environ={})
    assert caught.value.exit_code == 3
    return str(caught.value)


def test_without_a_kit_it_is_the_loopback_kit() -> None:
    kit = load_settings(environ={"HOME": "/nonexistent"}).kit
    assert (kit.name, kit.topology, kit.engine) == ("loopback", "loopback", "vllm-cpu")
    assert [node.fabric for node in kit.nodes] == ["127.0.0.1", "127.0.0.2"]
    assert not kit.needs_key


@pytest.mark.cases(111)
def test_order_command_line_environment_file_topology_default(tmp_path: Path) -> None:
    text = "[serve]\nport = 1001\nmax_num_seqs = 2\nname = 'file'\n"
    settings = load_settings(
        write(tmp_path, text),
        sets=("serve.port=1003",),
        environ={"GLMSPARK_SERVE_PORT": "1002", "GLMSPARK_SERVE_MAX_NUM_SEQS": "3"},
    )
    rows = {key: (value, origin) for key, value, origin in show_rows(settings)}
    assert rows["serve.port"] == (1003, "command line")
    environment = "environment GLMSPARK_SERVE_MAX_NUM_SEQS"
    assert rows["serve.max_num_seqs"] == (3, environment)
    assert rows["serve.name"] == ("file", f"{tmp_path}/kit.toml:4")
    assert rows["serve.max_model_len"] == (2048, "topology loopback")
    assert rows["serve.host"] == ("127.0.0.1", "default")
    assert settings.from_environment() == [
        f"serve.max_num_seqs comes from {environment}"
    ]


def test_search_order_of_files(tmp_path: Path) -> None:
    home = tmp_path / "h"
    (home / ".config/glmspark").mkdir(parents=True)
    (home / ".config/glmspark/kit.toml").write_text("name = 'user'")
    environ = {"HOME": str(home)}
    assert load_settings(environ=environ).kit.name == "user"
    Path("kit.toml").write_text("name = 'here'")
    assert load_settings(environ=environ).kit.name == "here"
    (tmp_path / "other.toml").write_text("name = 'asked'")
    environ["GLMSPARK_KIT"] = str(tmp_path / "other.toml")
    assert load_settings(environ=environ).kit.name == "asked"
    assert load_settings("kit.toml", environ=environ).kit.name == "here"


def test_an_asked_for_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="was asked for and does not exist"):
        load_settings(str(tmp_path / "none.toml"), environ={})


def test_bom_and_crlf_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "kit.toml"
    path.write_bytes(b"\xef\xbb\xbfname = 'x'\r\n[serve]\r\nport = 9000\r\n")
    assert load_settings(str(path), environ={}).kit.serve.port == 9000


@pytest.mark.cases(113)
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("name = 'x'\n[serve]\nprot = 3\n", ["kit.toml:3: serve.prot is no setting"]),
        ("[serve]\nprot = 3\n", ["did you mean port?", "allowed here: host, port,"]),
        ("[serve]\nport = -1\n", ["kit.toml:2: serve.port = -1", "must be 1 or more"]),
        ("[serve]\nport = 70000\n", ["serve.port = 70000", "must be 65535 or less"]),
        ("[serve]\nport = '80'\n", ['serve.port = "80"', "whole number"]),
        ("[serve]\nport = true\n", ["serve.port = true"]),
        (
            "serve = 5\n",
            ["kit.toml:1: serve = 5", "must be a table with keys of: host"],
        ),
        ("topology = 'tp5'\n", ['topology = "tp5"', "tp2, tp3, tp4, tp4-ring"]),
        ("toplogy = 'tp2'\n", ["did you mean topology?"]),
        ("name = 'Not A Name'\n", ['name = "Not A Name"', "lower-case letters"]),
        (
            "[serve]\nhost = 'example'\n",
            [':2: serve.host = "example"', "an IP address"],
        ),
        ("[serve]\nhost = '0.0.0.0'\n[auth]\nmode = 'none'\n", ["opens the API"]),
        ("[serve]\nport = 29555\n", ["both 29555"]),
        ("[timeouts]\nstall_s = 0\n", ["timeouts.stall_s = 0", "must be above 0"]),
        ("topology = 'tp2'\n", ["nodes"]),
        (PAIR.replace("10.0.0.2", "10.0.0.1"), ["fabric 10.0.0.1 stands twice"]),
        (PAIR.replace('"b"', '"a"'), ["name a stands twice"]),
        (
            PAIR.replace("10.0.0.2", "nowhere"),
            [':9: nodes[1].fabric = "nowhere"', "IP address"],
        ),
        (PAIR.replace("tp2", "tp3"), ["has 3 nodes, kit names 2"]),
        (PAIR + "gpu = 1\n", ["kit.toml:11: nodes[1].gpu is no setting"]),
        ("nodes = [1, 2]\n", [":1: nodes[1] = 2: must be a table with keys of: name"]),
        ("[nodes]\nname = 'a'\n", [":2: nodes = ", "must be a list"]),
        ("[[serve]]\nport = 1\n", [":2: serve = ", "must be a table with keys of"]),
        ("name = \n", ["not valid TOML", "line 1"]),
        ("engine = 'vllm-gb10'\nruntime='venv'\n", ["runtime: venv"]),
    ],
)
def test_mistakes_say_file_line_key_value_and_remedy(
    tmp_path: Path, text: str, parts: list[str]
) -> None:
    said = message(tmp_path, text)
    for part in parts:
        assert part in said
    assert str(tmp_path) in said


@pytest.mark.parametrize("value", ["-1", "1.5", "nan", "true", "'§ §'", "[{}]", "{}"])
def test_no_finding_is_in_the_parsers_own_words(tmp_path: Path, value: str) -> None:
    path = tmp_path / "kit.toml"
    refused = 0
    for key in (*known_keys(), "serve", "nodes"):
        path.write_text(f"{key} = {value}\n")
        try:
            load_settings(str(path), environ={})
        except ConfigError as error:
            refused += 1
            for foreign in (
                "nput ",
                "should",
                "alidation",
                "pydantic",
                "^[",
                "loopback:",
            ):
                assert foreign not in str(error), f"{key} = {value}: {error}"
    assert refused > 5


def test_all_mistakes_are_said_at_once(tmp_path: Path) -> None:
    said = message(tmp_path, "[serve]\nport = -1\nprot = 1\n[auth]\nmod = 1\n")
    assert {":2:", ":3:", ":5:"} <= {part[:3] for part in said.split("kit.toml")}


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "kit.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        load_settings(str(path), environ={})


@pytest.mark.cases(111)
def test_unknown_variables_are_errors_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean GLMSPARK_SERVE_PORT"):
        load_settings(environ={"HOME": "/x", "GLMSPARK_SERVE_PROT": "1"})


@pytest.mark.parametrize("pair", ["serve.port", "serve.prot=1", "=1"])
def test_bad_set_flags(pair: str) -> None:
    with pytest.raises(ConfigError, match="--set"):
        load_settings(sets=(pair,), environ={"HOME": "/x"})


@pytest.mark.cases(133)
def test_a_kit_on_another_address_needs_a_key() -> None:
    sets = ("serve.host=0.0.0.0",)
    assert load_settings(sets=sets, environ={"HOME": "/x"}).kit.needs_key


def test_every_scalar_key_can_be_set_by_variable_and_flag() -> None:
    keys = known_keys()
    assert "serve.port" in keys and "topology" in keys and "nodes" not in keys
    names = [key.upper().replace(".", "_") for key in keys]
    assert len(set(names)) == len(names)


def test_committed_schema_is_current() -> None:
    from glmspark import jsonschema

    file = Path(jsonschema.__file__).with_name("data") / "kit.schema.json"
    assert json.loads(file.read_text()) == jsonschema.kit_schema(), (
        "run: glmspark config schema > python/glmspark/data/kit.schema.json"
    )


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (("topology",), 1),
        (("nodes", 0, "name"), 4),
        (("nodes", 1, "fabric"), 9),
        (("nodes", 1, "ssh"), 7),
        (("absent",), 1),
    ],
)
def test_lines_of_keys(key: tuple[str | int, ...], line: int) -> None:
    assert line_of(PAIR, key) == line
