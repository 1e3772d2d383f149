"""Profiles are data: they parse, say where figures come from, and refuse typos."""

import pytest
from glmspark.errors import ConfigError
from glmspark.serving.profiles import difference, load_profile, parse, profile_names

WANTED = [
    "default",
    "long-coding",
    "long-context",
    "many-users",
    "speed-boost",
    "transplant",
]


def test_the_six_profiles_are_there():
    assert profile_names() == WANTED


@pytest.mark.parametrize("name", WANTED)
def test_profile_says_what_it_is_and_whence(name):
    profile = load_profile(name)
    assert profile.summary
    for row in profile.measured:
        assert row.value > 0
        assert row.conditions
        assert row.source


def test_the_rules_of_the_names():
    assert load_profile("long-context").engine.max_model_len == 1_048_576
    assert load_profile("long-coding").engine.max_model_len == 262_144
    assert load_profile("many-users").engine.max_num_seqs == 8
    assert load_profile("speed-boost").engine.dense == "exl3"


def test_speed_boost_pins_public_inputs_and_the_gpu():
    build = load_profile("speed-boost").build
    assert build["drafter"]["device"] == "cuda"
    assert all(len(step["revision"]) == 40 for step in build.values())


def test_transplant_ships_no_donor():
    assert load_profile("transplant").transplant["repository"] == ""


def test_profiles_inherit_what_they_leave_out():
    default, long = load_profile("default"), load_profile("long-context")
    assert set(difference(default, long)) == {
        "max_model_len",
        "max_num_seqs",
        "prefill_blocks",
        "images",
    }
    assert difference(default, default) == {}


def test_own_file_extends_a_shipped_one(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('extends = "long-coding"\n[engine]\nmax_num_seqs = 1\n')
    mine = load_profile(str(path))
    assert mine.name == "mine"
    assert mine.engine.max_num_seqs == 1
    assert mine.engine.long_prefill_tokens == 1024


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[engine]\nmax_seqs = 3", "engine.max_seqs is not known"),
        ('[engine]\ndense = "int4"', "engine.dense is 'int4'"),
        ("[engine]\nmax_num_seqs = 0", "must be at least 1"),
        ("[engin]\n", "unknown tables: engin"),
        ("[engine", "is not TOML"),
    ],
)
def test_mistakes_are_named(text, words):
    with pytest.raises(ConfigError, match=words):
        parse("p", text)


def test_unknown_profile_lists_the_known():
    with pytest.raises(ConfigError, match="'fast' is not known; known: default"):
        load_profile("fast")
