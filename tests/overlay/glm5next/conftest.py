"""The tiny checkpoints, and vLLM with the reference plugin beside ours."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from vllm_exl3 import loopback

from tests.overlay.glm5next import checkpoint

# fixture: plugin_site, engine_env and run_engine are tests/overlay/conftest.py's
PLUGIN = Path(__file__).parent / "glm5next_cpu"


@pytest.fixture(scope="session")
def engine_env(
    engine_env: dict[str, str],
    plugin_site: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, str]:
    """The engine's environment, with the reference installed by pip as well."""
    base = tmp_path_factory.mktemp("reference")
    source, site = base / "glm5next_cpu", base / "site"
    shutil.copytree(PLUGIN, source)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    pip += ["--no-build-isolation", "--no-index", "--target", str(site), str(source)]
    subprocess.run(pip, check=True)
    return engine_env | {"PYTHONPATH": f"{plugin_site}:{site}"}


def make(base: Path, layers: tuple[str, ...]) -> Path:
    """``base`` with ``source`` (other experts), ``exl3`` and ``twin``."""
    source = checkpoint.make_bf16(base / "source", layers)
    loopback.make(source, base / "exl3", base / "twin")
    return base


@pytest.fixture(scope="session")
def kda_only(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three KDA layers, the first with a dense MLP."""
    return make(tmp_path_factory.mktemp("kda"), checkpoint.KDA_ONLY)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """KDA and sparse MLA layers, as the real model's first five are."""
    return make(tmp_path_factory.mktemp("full"), checkpoint.FULL)
