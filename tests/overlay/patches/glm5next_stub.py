"""Makes vllm.models.glm5next's files importable without its package's own imports.

The package imports glm4_1v and, through transformers, torchvision, which the slim CPU
set does not have. Its files do not need that.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def install() -> None:
    """Registers bare packages whose files are found where vLLM has them."""
    root = Path(importlib.util.find_spec("vllm").submodule_search_locations[0])
    for name in ("", ".common", ".nvidia"):
        package = ModuleType(f"vllm.models.glm5next{name}")
        folder = root.joinpath("models", "glm5next", *name.split(".")[1:])
        package.__path__ = [str(folder)]
        sys.modules.setdefault(package.__name__, package)
