"""The dense tensors over real HTTP: one result, whatever happens on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from glmspark.boost import guard as guards
from glmspark.errors import PreflightError
from glmspark.locks import operation_lock
from glmspark.weights import gc, view
from vllm_exl3 import schema, stfile

from tests.unit.boost.conftest import (
    KINDS,
    PACK_REV,
    RATE,
    Desk,
    Inputs,
    RangeHub,
    dense_shapes,
)
from tests.unit.weights.conftest import wait_for

SHARD = "model-00001-of-00002.safetensors"
OTHER = "model-00002-of-00002.safetensors"
DENSE = "glmspark-dense-exl3.safetensors"


def wanted() -> list[str]:
    kinds = tuple(f".{kind}" for kind in KINDS)
    return [name for name in sorted(dense_shapes()) if name.endswith(kinds)]


def built(desk: Desk, ran: dict[str, dict[str, str]]) -> dict[str, bytes]:
    folder = Path(ran["target"]["view"]).resolve()
    assert folder.parent.name == ".gen"
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def tensors(folder: Path, data: bytes) -> dict[str, stfile.Raw]:
    folder.mkdir()
    (folder / "x.safetensors").write_bytes(data)
    return dict(stfile.tensors(folder))


# -- the result --------------------------------------------------------------------


def test_the_view_is_the_target_with_the_packs_dense_tensors(
    desk: Desk, hub: RangeHub, inputs: Inputs, tmp_path: Path
) -> None:
    ran = desk.ok().data
    assert ran["result"] == "built"
    files = built(desk, ran)
    new = tensors(tmp_path / "new", files[DENSE])
    pack = {}
    for name in (SHARD, OTHER):
        pack |= tensors(tmp_path / name, inputs.pack[name])
    fields = ("trellis", "suh", "svh", "mul1")
    assert set(new) == {f"{name}.{field}" for name in wanted() for field in fields}
    assert all(new[name] == pack[name] for name in new)
    for name, data in inputs.target.items():
        if name != "config.json":
            assert files[name] == data  # the very blobs of the base
    index = json.loads(files["model.safetensors.index.json"])
    assert {n for n, f in index["weight_map"].items() if f == DENSE} == set(new)
    assert not [n for n in wanted() if f"{n}.weight" in index["weight_map"]]
    config = json.loads(files["config.json"])
    spec = schema.parse(config["quantization_config"])
    assert dict(spec.dense) == dict.fromkeys(wanted(), RATE)
    assert spec.ignores_native
    assert (
        spec.experts
        == schema.parse(
            json.loads(inputs.target["config.json"])["quantization_config"]
        ).experts
    )


def test_only_ranges_are_read_and_the_token_stays_with_the_hub(
    desk: Desk, hub: RangeHub, inputs: Inputs
) -> None:
    hub.token = desk.env["HF_TOKEN"] = "hf_secret"
    ran = desk.ok()
    whole = sum(len(inputs.pack[name]) for name in (SHARD, OTHER))
    assert sum(end - start for _, start, end in hub.served if end - start > 8) < whole
    assert all(s.range for s in hub.gets() if s.path.startswith("/cdn"))
    assert not any(s.authorization for s in hub.seen if s.path.startswith("/cdn"))
    assert "hf_secret" not in ran.err
    assert all(PACK_REV in s.path for s in hub.seen)


def test_a_second_build_says_already_and_asks_nobody(desk: Desk, hub: RangeHub) -> None:
    first = desk.ok().data
    before = len(hub.seen)
    second = desk.ok().data
    assert (second["result"], second["target"]) == ("already", first["target"])
    assert len(hub.seen) == before
    assert not desk.pieces()
    assert desk.ok(dry_run=True).data["steps"] == [
        f"already: {first['target']['view']}"
    ]


def test_gc_keeps_it_and_a_lost_blob_is_no_already(desk: Desk) -> None:
    ran = desk.ok().data
    gc.collect(desk.store)
    folder = Path(ran["target"]["view"])
    assert built(desk, ran)[DENSE]
    blob = (folder / DENSE).resolve()
    blob.unlink()
    assert desk.ok().data["result"] == "built"
    assert (folder / DENSE).resolve() == blob
    manifest = desk.store.manifests()[folder.name]
    assert view.link(desk.store, manifest).path == folder


def test_dry_run_says_what_and_asks_nobody(desk: Desk, hub: RangeHub) -> None:
    steps = desk.ok(dry_run=True, with_drafter=True).data["steps"]
    assert [s.split(" of ")[0] for s in steps if " of " in s] == [
        "quantize on the GPU weights",
        "read dense EXL3 tensors",
    ]
    assert not hub.seen


# -- what does not fit, before any of its bytes ---------------------------------------


def changed(
    inputs: Inputs, hub: RangeHub, tmp: Path, name: str, **fields: object
) -> None:
    """Put a pack on the Hub in which tensor ``name`` is another one."""
    raw = tensors(tmp / "was", inputs.pack[SHARD])
    if fields:
        values = {"dtype": raw[name].dtype, "shape": raw[name].shape} | fields
        raw[name] = stfile.Raw(**({"data": raw[name].data} | values))
    else:
        del raw[name]
    stfile.write(tmp / "changed", raw)
    hub.repos[next(iter(hub.repos))][SHARD] = (tmp / "changed").read_bytes()


FIRST = "model.layers.0.self_attn.k_proj"


@pytest.mark.parametrize(
    ("field", "change", "code", "words"),
    [
        ("trellis", {"dtype": "F16"}, 7, "k_proj.trellis is F16"),
        ("suh", {"dtype": "BF16"}, 7, "k_proj.suh is BF16"),
        ("svh", {"shape": (64,)}, 7, "needed F16 [128]"),
        ("suh", {}, 3, "k_proj.trellis and no model.layers.0.self_attn.k_proj.suh"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named_and_none_is_read(  # noqa: PLR0917
    desk: Desk,
    hub: RangeHub,
    inputs: Inputs,
    tmp_path: Path,
    field: str,
    change: dict[str, object],
    code: int,
    words: str,
) -> None:
    names = sorted(dense_shapes())
    assert names.index(FIRST) % 2 == 0, "the tensor is in the first shard"
    changed(inputs, hub, tmp_path, f"{FIRST}.{field}", **change)
    ran = desk.run()
    assert ran.code == code, ran
    assert words in ran.data["error"]
    assert not desk.pieces()


def test_names_of_another_pack_are_refused_with_what_it_has(
    desk: Desk, hub: RangeHub
) -> None:
    desk.write_profile(kinds=(*KINDS, "mlp.shared_experts.down_proj"))
    ran = desk.run()
    assert ran.code == 3
    assert (
        "no tensor model.layers.1.mlp.shared_experts.down_proj.trellis"
        in (ran.data["error"])
    )
    assert "it has model.layers.0." in ran.data["error"]
    desk.write_profile(kinds=("self_attn.q_proj",))
    ran = desk.run()
    assert ran.code == 3
    assert "one layer for the engine" in ran.data["error"]
    desk.write_profile(kinds=("self_attn.wo",))
    ran = desk.run()
    assert (ran.code, "no layer that ends in self_attn.wo" in ran.data["error"]) == (
        3,
        True,
    )


def test_a_base_that_is_not_there_is_named_with_its_command(desk: Desk) -> None:
    ran = desk.run(base=f"kit/other@{'d' * 40}")
    assert (ran.code, "weights lock" in ran.data["hint"]) == (3, True)
    ran = desk.run(base="/some/folder")
    assert (ran.code, "REPOSITORY@REVISION" in ran.data["error"]) == (3, True)


# -- faults of the way -----------------------------------------------------------------


@pytest.mark.parametrize("fault", ["503", "429", "reset", "truncate", "stall", "wrong"])
def test_a_fault_is_asked_again(desk: Desk, hub: RangeHub, fault: str) -> None:
    good = desk.ok(store=str(desk.store.root)).data
    gc.forget(desk.store, Path(good["target"]["view"]).name)
    hub.fail(SHARD, fault)
    again = desk.ok().data
    assert again["dense_sha256"] == good["dense_sha256"]


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("503", 5, "failed on model-00001"),
        ("416", 5, "has less of"),
        ("404", 5, "404"),
        ("ignore-range", 5, "ignores ranges"),
    ],
)
def test_a_fault_that_stays_ends_the_build_in_words(
    desk: Desk, hub: RangeHub, fault: str, code: int, words: str
) -> None:
    hub.fail(SHARD, *[fault] * 50)
    ran = desk.run(attempts=2)
    assert ran.code == code, ran
    assert words in ran.data["error"]


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        (np.int32(-2082680531).tobytes(), b"\0\0\0\0", "the marker of mul1"),
        (None, np.float16("nan").tobytes() * 9, "suh holds NaN"),
    ],
)
def test_wrong_bytes_are_found(  # noqa: PLR0917
    desk: Desk,
    hub: RangeHub,
    inputs: Inputs,
    tmp_path: Path,
    was: bytes | None,
    now: bytes,
    words: str,
) -> None:
    """Scales and markers are what a range can be held against without a pin."""
    data = inputs.pack[SHARD]
    if was is None:
        was = tensors(tmp_path / "was", data)[f"{FIRST}.suh"].data[: len(now)]
    broken = data.replace(was, now)
    assert broken != data
    hub.repos[next(iter(hub.repos))][SHARD] = broken
    ran = desk.run()
    assert (ran.code, words in ran.data["error"]) == (7, True)


def test_the_pin_of_the_profile_holds(desk: Desk, hub: RangeHub) -> None:
    good = desk.ok().data["dense_sha256"]
    desk.write_profile(more=f'sha256 = "{"0" * 64}"')
    ran = desk.run()
    assert (ran.code, good in ran.data["error"]) == (7, True)
    assert not desk.pieces(), "one of them is wrong: all of them come again"
    desk.write_profile(more=f'sha256 = "{good}"')
    assert desk.ok().data["dense_sha256"] == good


def test_another_commit_than_asked_for_is_refused(desk: Desk, hub: RangeHub) -> None:
    other = "e" * 40
    hub.refs[next(iter(hub.repos))[0], other] = PACK_REV
    desk.write_profile(rev=other)
    ran = desk.run()
    assert (ran.code, "answers with commit" in ran.data["error"]) == (7, True)


# -- cut off, crowded, damaged, full -------------------------------------------------


def test_a_kill_at_any_piece_loses_nothing_that_had_come(
    desk: Desk, hub: RangeHub
) -> None:
    good = desk.ok().data
    gc.forget(desk.store, Path(good["target"]["view"]).name)
    seen = len(hub.served)
    hub.hold_after = seen + 12  # then the Hub is silent, in the middle of the ranges
    child = desk.start()
    wait_for(lambda: len(desk.pieces()) >= 4, "some pieces came")
    wait_for(lambda: len(hub.served) == hub.hold_after, "the Hub holds the rest back")
    child.send_signal(signal.SIGKILL)
    desk.end(child)
    kept = desk.pieces()
    spans = {tuple(map(int, p.name.split(".")[0].split("-")[2:])) for p in kept}
    hub.hold_after = 0
    before = len(hub.served)
    again = desk.ok().data
    assert again["dense_sha256"] == good["dense_sha256"]
    assert again["fetched_bytes"] < good["fetched_bytes"]
    fetched = {(start, end) for _, start, end in hub.served[before:]}
    assert spans
    assert not spans & fetched
    assert not desk.pieces()


def test_a_piece_that_went_bad_comes_again_alone(desk: Desk, hub: RangeHub) -> None:
    hub.fail(OTHER, *["404"] * 40)
    ran = desk.run(attempts=1)
    assert ran.code == 5
    hub.faults.clear()
    first = desk.pieces()
    if not first:  # the headers come first: let them pass, and cut what follows
        hub.hold_after = len(hub.served) + 10
        child = desk.start()
        wait_for(lambda: len(desk.pieces()) >= 3, "some pieces came")
        child.kill()
        desk.end(child)
        hub.hold_after = 0
        first = desk.pieces()
    bad = first[0]
    bad.write_bytes(bytes(len(bad.read_bytes())))
    span = tuple(map(int, bad.name.split(".")[0].split("-")[2:]))
    before = len(hub.served)
    desk.ok()
    fetched = [(start, end) for _, start, end in hub.served[before:]]
    assert fetched.count(span) == 1


def test_two_builds_at_once_make_one_result(desk: Desk, hub: RangeHub) -> None:
    hub.hold_after = 8
    first = desk.start()
    wait_for(lambda: bool(desk.pieces()), "the first one works")
    second = desk.run()
    assert second.code == 5
    assert f"pid {first.pid}" in second.data["error"]
    first.kill()
    desk.end(first)
    hub.hold_after = 0
    assert desk.ok().data["result"] == "built"
    assert desk.ok().data["result"] == "already"


def test_without_room_it_does_not_begin(desk: Desk) -> None:
    full = SimpleNamespace(f_bavail=10, f_frsize=4096)
    guard = guards.Guard(desk.tmp / "states", lambda: 0, has_cuda=True)
    with (
        mock.patch.object(os, "statvfs", lambda _path: full),
        pytest.raises(PreflightError, match=r"GiB are missing"),
    ):
        guard.before(desk.store.root, 1 << 30, needs_gpu=False)


# -- beside a kit ----------------------------------------------------------------------


def test_it_does_not_begin_beside_a_serving_kit(desk: Desk, hub: RangeHub) -> None:
    (desk.tmp / "serving").write_text("2")
    ran = desk.run()
    assert (ran.code, ran.data["hint"]) == (4, "glmspark stop")
    assert not hub.seen


def test_it_does_not_begin_without_a_gpu(desk: Desk) -> None:
    ran = desk.run(has_cuda=False, with_drafter=True)
    assert (ran.code, "no CUDA device" in ran.data["error"]) == (4, True)


def test_it_gives_way_to_a_kit_that_comes(desk: Desk, hub: RangeHub) -> None:
    """A start is not held up: the build ends by itself, and keeps what it has."""
    hub.fail(SHARD, *["503"] * 40)
    child = desk.start(attempts=9)
    wait_for(lambda: len(hub.gets(SHARD)) >= 2, "it works")
    (desk.tmp / "serving").write_text("2")
    ran = desk.end(child)
    assert ran.code == 5
    assert "gave way: 2 ranks run here now" in ran.data["error"]


def test_a_rank_of_any_kit_is_seen() -> None:
    before = guards.serving_ranks()
    env = {**os.environ, "GLMSPARK_BOOT": "boost-test", "GLMSPARK_RANK": "0"}
    child = subprocess.Popen(["sleep", "60"], env=env)
    try:
        wait_for(lambda: guards.serving_ranks() > before, "the rank shows")
    finally:
        child.kill()
        child.wait()


def test_it_gives_way_to_a_start_from_its_first_moment(desk: Desk) -> None:
    (desk.tmp / "states/home").mkdir()
    with operation_lock(desk.tmp / "states/home/lock", "start"):
        ran = desk.run()
    assert ran.code == 5
    assert "a start is under way (kit home: start by" in ran.data["error"]
    with operation_lock(desk.tmp / "states/home/lock", "stop"):
        assert desk.ok().data["result"] == "built"
