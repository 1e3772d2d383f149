"""What the EXL3 engine tests share: the installed plugin and the two checkpoints."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.overlay import exl3_engine, exl3_model

REPO = Path(__file__).parents[2]
Answers = list[dict[str, Any]]


@pytest.fixture(scope="session")
def plugin_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the plugin installed by pip, entry point and all."""
    base = tmp_path_factory.mktemp("plugin")
    source = base / "vllm_exl3"
    shutil.copytree(REPO / "overlay/vllm_exl3", source)
    site = base / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    pip += ["--no-build-isolation", "--no-index", "--target", str(site), str(source)]
    subprocess.run(pip, check=True)
    return site


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``exl3`` and ``twin``, the tiny model in both forms."""
    from vllm_exl3 import loopback

    base = tmp_path_factory.mktemp("checkpoints")
    source = exl3_model.make_bf16(base / "source")
    loopback.make(source, base / "exl3", base / "twin")
    return base


@pytest.fixture(scope="session")
def engine_env(plugin_site: Path) -> dict[str, str]:
    """The environment in which vLLM finds the plugin and stays on this machine."""
    return os.environ | {
        "PYTHONPATH": str(plugin_site),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "60",
    }


@pytest.fixture(scope="session")
def run_engine(engine_env: dict[str, str]) -> Callable[..., Answers]:
    """Call with model folders, engine arguments and environment; one answer each."""

    def run(models: list[Path], env: dict[str, str], **engine: Any) -> Answers:
        job = {"models": [str(m) for m in models], "engine": engine}
        done = subprocess.run(
            [sys.executable, exl3_engine.__file__, json.dumps(job)],
            env=engine_env | env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=300,
            check=False,
        )
        lines = [
            json.loads(line.removeprefix("ANSWER "))
            for line in done.stdout.splitlines()
            if line.startswith("ANSWER ")
        ]
        assert len(lines) == len(models), done.stdout[-6000:]
        # What a failed worker said is in the log alone.
        return [line | {"log": done.stdout} for line in lines]

    return run
