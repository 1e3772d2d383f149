"""A tiny EXL3 target, a pack of its dense layers, a drafter; a Hub with ranges."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from glmspark.weights import importer
from glmspark.weights.manifest import Manifest
from glmspark.weights.store import Store
from vllm_exl3 import loopback, stfile
from vllm_exl3.schema import Rate
from vllm_exl3.stfile import Raw
from vllm_exl3.tables import Codebook

from tests.overlay import exl3_model
from tests.unit.weights import fakehub
from tests.unit.weights.conftest import manifest_of

ROOT = Path(__file__).resolve().parents[3]
TARGET, PACK, DRAFT = "kit/target", "pub/pack", "pub/drafter"
TARGET_REV, PACK_REV, DRAFT_REV = "a" * 40, "b" * 40, "c" * 40
RATE = Rate(5, Codebook.MUL1)
KINDS = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"),
    "mlp.down_proj",
)
DRAFT_KINDS = ("self_attn.o_proj", "mlp.down_proj")
PROFILE = """
[build.dense]
repository = "{pack}"
revision = "{rev}"
layers = {kinds}
{more}

[build.drafter]
repository = "{draft}"
revision = "{draft_rev}"
bits = 6
layers = {draft_kinds}
"""


@dataclass
class RangeHub(fakehub.Hub):
    """The Hub, whose ranges end where they were asked to.

    ``served`` lists those that were answered; after ``hold_after`` of them (0: never)
    it falls silent.
    """

    served: list[tuple[str, int, int]] = field(default_factory=list)
    hold_after: int = 0

    async def _bytes(
        self, request: web.Request, path: str, data: bytes, headers: dict[str, str]
    ) -> web.StreamResponse:
        asked = request.headers.get("Range", "")
        faults = self.faults.get(path)
        if faults and faults[0] == "wrong":
            faults.popleft()
            data = bytes(byte ^ 0xFF for byte in data)
        elif request.method != "GET" or not asked or faults:
            return await super()._bytes(request, path, data, headers)
        first, _, last = asked.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last) + 1, len(data))
        if start >= len(data):
            return web.Response(status=416)
        if self.hold_after and len(self.served) >= self.hold_after:
            await asyncio.sleep(30)
        self.served.append((path, start, end))
        told = f"bytes {start}-{end - 1}/{len(data)}"
        return web.Response(
            status=206, body=data[start:end], headers=headers | {"Content-Range": told}
        )


def files_of(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file()}


def dense_shapes(kinds: tuple[str, ...] = KINDS) -> dict[str, tuple[int, int]]:
    """Name -> (in, out) of the layers that the pack has."""
    return {
        name.removesuffix(".weight"): (shape[1], shape[0])
        for name, shape in exl3_model.shapes(exl3_model.CONFIG).items()
        if any(name.endswith(f".{k}.weight") for k in (*kinds, "mlp.gate_proj"))
        and ".experts." not in name
    }


def make_pack(folder: Path) -> tuple[dict[str, bytes], dict[str, Raw]]:
    """The pack's files (two shards and an index), and its layers' bf16 twins."""
    shards: list[dict[str, Raw]] = [{}, {}]
    twins = {}
    for number, (name, shape) in enumerate(sorted(dense_shapes().items())):
        packed, twins[name] = loopback.random_layer(name, shape, RATE, 7)
        shards[number % 2] |= packed
        # What lies between: experts, which nobody wants.
        shards[number % 2][f"{name}.experts.0.x.trellis"] = Raw.of(
            np.zeros(3000, dtype=np.int16)
        )
    folder.mkdir()
    index = {}
    for number, content in enumerate(shards, start=1):
        file = f"model-0000{number}-of-00002.safetensors"
        stfile.write(folder / file, content)
        index |= dict.fromkeys(content, file)
    text = json.dumps({"weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text)
    return files_of(folder), twins


def make_drafter(folder: Path) -> dict[str, bytes]:
    rng = np.random.default_rng(3)
    shapes = {f"layers.0.{kind}.weight": (128, 128) for kind in DRAFT_KINDS}
    shapes |= {"layers.0.mlp.gate_proj.weight": (128, 128), "norm.weight": (128,)}
    content = {
        name: Raw.bf16(rng.standard_normal(shape, dtype=np.float32))
        for name, shape in shapes.items()
    }
    folder.mkdir()
    stfile.write(folder / "model.safetensors", content)
    config = {"architectures": ["DFlash2DraftModel"], "num_target_layers": 3}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "README.md").write_text("terms")
    return files_of(folder)


@dataclass(frozen=True)
class Inputs:
    """Files by repository, and what the pack's layers are as bf16."""

    target: dict[str, bytes]
    pack: dict[str, bytes]
    drafter: dict[str, bytes]
    twins: dict[str, Raw]


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    tmp = tmp_path_factory.mktemp("inputs")
    loopback.make(exl3_model.make_bf16(tmp / "bf16"), tmp / "target")
    pack, twins = make_pack(tmp / "pack")
    return Inputs(files_of(tmp / "target"), pack, make_drafter(tmp / "drafter"), twins)


@dataclass
class Ran:
    code: int
    data: dict[str, Any]
    err: str


@dataclass
class Desk:
    """A store with target and drafter, and builds of them in their own processes."""

    tmp: Path
    env: dict[str, str]
    profile_text: str = ""
    spec: dict[str, Any] = field(default_factory=dict)
    children: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for folder in ("states", "home"):
            (self.tmp / folder).mkdir()
        self.write_profile()
        self.spec = {
            "name": "speed-boost",
            "profile": str(self.tmp / "profile.toml"),
            "base": f"{TARGET}@{TARGET_REV}",
            "store": str(self.tmp / "store"),
            "states": str(self.tmp / "states"),
            "serving": str(self.tmp / "serving"),
            "piece_bytes": 20_000,
            "gap_bytes": 4_000,
            "with_drafter": False,
            "attempts": 3,
            "device": "cpu",
            "has_cuda": True,
            "dry_run": False,
        }

    @property
    def store(self) -> Store:
        return Store.open(self.tmp / "store")

    def write_profile(
        self, kinds: tuple[str, ...] = KINDS, more: str = "", rev: str = PACK_REV
    ) -> None:
        text = PROFILE.format(
            pack=PACK,
            rev=rev,
            draft=DRAFT,
            draft_rev=DRAFT_REV,
            kinds=json.dumps(list(kinds)),
            draft_kinds=json.dumps(list(DRAFT_KINDS)),
            more=more,
        )
        (self.tmp / "profile.toml").write_text(text)

    def start(self, **changes: Any) -> subprocess.Popen[str]:
        path = self.tmp / f"job-{os.urandom(4).hex()}.json"
        path.write_text(json.dumps(self.spec | changes))
        child = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("driver.py")), str(path)],
            env=self.env,
            cwd=self.tmp,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.children.append(child)
        return child

    @staticmethod
    def end(child: subprocess.Popen[str]) -> Ran:
        out, err = child.communicate(timeout=400)
        return Ran(child.returncode, json.loads(out) if out else {}, err)

    def run(self, **changes: Any) -> Ran:
        return self.end(self.start(**changes))

    def ok(self, **changes: Any) -> Ran:
        ran = self.run(**changes)
        assert ran.code == 0, (ran.data, ran.err)
        return ran

    def pieces(self) -> list[Path]:
        """The finished pieces of all builds that are under way."""
        return sorted((self.tmp / "store/builds").glob("*/[!.]*.*"))


def put(
    store: Store, folder: Path, files: dict[str, bytes], manifest: Manifest
) -> None:
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    importer.import_from(store, folder, [manifest], chosen=True)
    store.register(manifest)


@pytest.fixture
def hub(inputs: Inputs) -> Iterator[RangeHub]:
    with fakehub.running(RangeHub()) as running:
        running.add(PACK, PACK_REV, dict(inputs.pack))
        yield running


@pytest.fixture
def desk(tmp_path: Path, inputs: Inputs, hub: RangeHub) -> Iterator[Desk]:
    env = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG")}
    path = os.pathsep.join(str(ROOT / part) for part in ("python", "overlay", "."))
    env |= {"HOME": str(tmp_path / "home"), "PYTHONPATH": path, "HF_ENDPOINT": hub.url}
    store = Store.open(tmp_path / "store", create=True)
    target = manifest_of(inputs.target, TARGET, TARGET_REV)
    put(store, tmp_path / "target", inputs.target, target)
    drafter = manifest_of(inputs.drafter, DRAFT, DRAFT_REV, license="no derivatives")
    put(store, tmp_path / "drafter", inputs.drafter, drafter)
    made = Desk(tmp_path, env)
    yield made
    for child in made.children:  # what a failed test left
        child.kill()
        child.communicate()
