"""A transplant: tensors by range, held against the target, and what a start opens."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from click.testing import CliRunner
from glmspark.boost import folders, names
from glmspark.cli import cli
from glmspark.errors import ConfigError
from glmspark.schema import Topology
from glmspark.serving.profiles import load_profile, parse
from vllm_exl3 import stfile
from vllm_exl3.stfile import Raw

from tests.overlay import exl3_model
from tests.unit.boost.conftest import TARGET, TARGET_REV, Desk, RangeHub

DONOR, DONOR_REV = "pub/donor", "d" * 40
TEXT = f"""
[transplant]
repository = "{DONOR}"
revision = "{DONOR_REV}"
layers = "1-2"
tensors = ["self_attn.o_proj.weight"]
"""
BASE = f"{TARGET}@{TARGET_REV}"


def donate(desk: Desk, hub: RangeHub, columns: int = 256) -> dict[str, Raw]:
    """A donor of other names around its layers, on the Hub; its tensors."""
    rng = np.random.default_rng(9)
    content = {
        f"language_model.layers.{n}.self_attn.o_proj.weight": Raw.bf16(
            rng.standard_normal((exl3_model.HIDDEN, columns), dtype=np.float32)
        )
        for n in range(3)
    }
    content["lm_head.weight"] = Raw.bf16(np.zeros((500, 500), dtype=np.float32))
    stfile.write(desk.tmp / "donor", content)
    index = {"weight_map": dict.fromkeys(content, "all.safetensors")}
    files = {"all.safetensors": (desk.tmp / "donor").read_bytes()}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    hub.add(DONOR, DONOR_REV, files)
    (desk.tmp / "profile.toml").write_text(TEXT)
    return content


def test_only_its_tensors_come_and_become_a_view(desk: Desk, hub: RangeHub) -> None:
    content = donate(desk, hub)
    ran = desk.ok(has_cuda=False).data
    folder = Path(ran["donor"]["view"]).resolve()
    found = dict(stfile.tensors(folder))
    kept = [n for n in content if ".layers.1." in n or ".layers.2." in n]
    assert found == {name: content[name] for name in kept}
    assert sum(end - start for _, start, end in hub.served if end - start > 4000) < (
        300_000
    )
    profile = parse("speed-boost", TEXT)
    opened = folders.opened(profile, BASE, desk.store.root, drafter=False)
    assert opened.donor == str(Path(ran["donor"]["view"]))
    assert opened.model == ""
    assert desk.ok().data["result"] == "already"


def test_what_does_not_fit_is_named(desk: Desk, hub: RangeHub) -> None:
    donate(desk, hub, columns=128)
    ran = desk.run()
    assert ran.code == 3
    assert (
        "o_proj.weight is BF16 [256, 128], the target has BF16 [256, 256]"
        in (ran.data["error"])
    )
    text = TEXT.replace("1-2", "1-4")
    (desk.tmp / "profile.toml").write_text(text)
    ran = desk.run()
    assert (
        ran.code,
        "has no layers.3.self_attn.o_proj.weight" in ran.data["error"],
    ) == (
        3,
        True,
    )


def test_a_profile_without_a_donor_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"transplant.revision is ''"):
        names.results(load_profile("transplant"), BASE, drafter=False)


def test_a_transplant_into_exl3_layers_would_be_lost() -> None:
    text = '[build.dense]\nrevision="%s"\nlayers=["self_attn.o_proj"]\n' % ("a" * 40)
    with pytest.raises(ConfigError, match="would be lost"):
        names.results(parse("both", text + TEXT), BASE, drafter=False)


# -- what a plan says -----------------------------------------------------------------


def plan(desk: Desk, profile: str) -> tuple[int, str]:
    sets = {"weights.target": BASE, "weights.store": desk.store.root}
    argv = ["plan", "--set", f"profile={profile}"]
    for key, value in sets.items():
        argv += ["--set", f"{key}={value}"]
    ran = CliRunner().invoke(cli, argv)
    if isinstance(ran.exception, ConfigError):
        return ran.exception.exit_code, f"{ran.exception} {ran.exception.hint}"
    return ran.exit_code, ran.output


def test_a_plan_names_the_built_view_or_the_command_that_builds_it(desk: Desk) -> None:
    own = Path.home() / ".config/glmspark/profiles"
    own.mkdir(parents=True)
    shutil.copy(desk.tmp / "profile.toml", own / "mine.toml")
    code, text = plan(desk, "mine")
    assert code == 3
    assert "needs local/mine-target@" in text
    assert "glmspark profile build mine" in text
    view = desk.ok(name="mine").data["target"]["view"]
    code, text = plan(desk, "mine")
    assert (code, view in text) == (0, True)
    code, text = plan(desk, "default")
    assert (code, view in text) == (0, False)


def test_exl3_heads_cannot_be_padded_for_three_ranks(tmp_path: Path) -> None:
    kit = SimpleNamespace(
        profile="speed-boost",
        weights=SimpleNamespace(target=BASE, drafter="mtp"),
        topology=Topology.TP3,
    )
    paths = SimpleNamespace(store=tmp_path)
    with pytest.raises(ConfigError, match="does not work at three ranks"):
        folders.of_kit(cast("Any", kit), cast("Any", paths), must_exist=True)
    kit.topology = Topology.TP2
    with pytest.raises(ConfigError, match="needs local/speed-boost-target@"):
        folders.of_kit(cast("Any", kit), cast("Any", paths), must_exist=True)
    named = folders.of_kit(cast("Any", kit), cast("Any", paths), must_exist=False)
    assert named.model.startswith(f"{tmp_path}/views/local--speed-boost-target--")
    assert (named.draft, named.donor) == ("", "")


def test_build_is_a_command(desk: Desk) -> None:
    own = Path.home() / ".config/glmspark/profiles"
    own.mkdir(parents=True)
    shutil.copy(desk.tmp / "profile.toml", own / "mine.toml")
    sets = [f"weights.target={BASE}", f"weights.store={desk.store.root}"]
    argv = ["profile", "build", "mine", "--set", sets[0], "--set", sets[1]]
    ran = CliRunner().invoke(cli, [*argv, "--dry-run", "--json"])
    assert ran.exit_code == 0, ran.output
    assert "read dense EXL3 tensors of pub/pack@" in json.loads(ran.stdout)["steps"][0]
    assert "weights.drafter is not dflash2" in ran.stderr
    listed = CliRunner().invoke(cli, ["profile", "list"]).output
    assert "mine" in listed
    for name, words in (("default", "needs no build"), ("nope", "is not known")):
        failed = CliRunner().invoke(cli, ["profile", "build", name])
        assert isinstance(failed.exception, ConfigError)
        assert words in str(failed.exception)
