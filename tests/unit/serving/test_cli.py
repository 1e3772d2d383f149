"""``profile`` and ``roofline`` as a user sees them."""

import json

import pytest
from click.testing import CliRunner
from glmspark import cli as cli_module
from glmspark.serving.profiles import profile_names


def run(*argv):
    done = CliRunner().invoke(cli_module.cli, list(argv), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_list_names_every_profile_with_its_line():
    lines = run("profile", "list").splitlines()
    assert [line.split()[0] for line in lines] == profile_names()
    assert all(len(line.split()) > 3 for line in lines)


@pytest.mark.parametrize("name", profile_names())
def test_show_prints_values_and_sources(name):
    text = run("profile", "show", name)
    assert "max_model_len = " in text
    shown = json.loads(run("profile", "show", name, "--json"))
    assert shown["name"] == name
    for row in shown["measured"]:
        assert row["source"] in text


def test_diff_prints_both_values():
    text = run("profile", "diff", "default", "long-context")
    assert "max_model_len: 262144 -> 1048576" in text
    assert run("profile", "diff", "default", "default") == ""
    pairs = json.loads(run("profile", "diff", "default", "many-users", "--json"))
    assert pairs["max_num_seqs"] == [4, 8]


def test_unknown_profile_is_a_configuration_error(capsys):
    assert cli_module.run(["profile", "show", "fast"]) == 3
    err = capsys.readouterr().err
    assert "error: profile 'fast' is not known" in err
    assert "hint: glmspark profile list" in err


def test_roofline_prints_ceiling_and_conditions():
    text = run("roofline")
    assert "MiB  routed experts" in text
    assert "prose: at most" in text
    assert "60.4 tok/s" in text
    assert "clock capped at 2,200 MHz" in text
    assert "92.3 tok/s" in text
    assert "not like for like" in text


def test_roofline_json_is_one_object_per_topology():
    found = json.loads(run("roofline", "--json", "--topology", "tp4"))
    (one,) = found["ceilings"]
    assert one["topology"] == "tp4"
    assert (
        one["tokens_s"]["prose"]["ceiling"] > one["tokens_s"]["prose"]["experts_apart"]
    )


def test_roofline_without_drafter_counts_steps():
    found = json.loads(run("roofline", "--json", "--drafter", "none"))
    assert set(found["ceilings"][0]["tokens_s"]) == {"a step"}
