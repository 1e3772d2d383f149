"""The built extension: where it lies, what it was built for, and loading it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from vllm_exl3.errors import Exl3Error
from vllm_exl3.files import write_text
from vllm_exl3.tables import Codebook

MODULE = "vllm_exl3_kernels"
LIBRARY = f"{MODULE}.so"
MANIFEST = f"{MODULE}.json"
REBUILD = "python -m vllm_exl3.build"
# Capabilities as TORCH_CUDA_ARCH_LIST and nvcc's targets spell them: 12.1a, 9.0.
ARCH = re.compile(r"\d{1,2}\.\d[af]?")
# exllamav3's MoE kernels know no other.
CODEBOOKS = (Codebook.MCG, Codebook.MUL1)


@dataclass(frozen=True)
class Manifest:
    """What an extension was built for; written beside it, checked before it loads.

    ``archs`` are capabilities such as ``12.1a``; ``fingerprint`` hashes sources,
    compiler and flags.
    """

    torch: str
    archs: tuple[str, ...]
    bits: int
    codebook: int
    fingerprint: str

    def write(self, folder: Path) -> None:
        """Into ``folder``, as JSON."""
        write_text(folder / MANIFEST, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """From ``folder``; ``Exl3Error`` when absent or unreadable."""
        path = folder / MANIFEST
        try:
            found = cls.of_json(json.loads(path.read_text()))
        except FileNotFoundError as error:
            raise Exl3Error(
                f"the EXL3 kernels are not built: {path} is absent", hint=REBUILD
            ) from error
        except OSError as error:
            raise Exl3Error(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, TypeError, KeyError) as error:
            raise Exl3Error(f"{path} is no manifest: {error}", hint=REBUILD) from error
        return found

    @classmethod
    def of_json(cls, data: Any) -> Manifest:
        """The manifest of parsed JSON; ValueError, TypeError or KeyError when none."""
        found = cls(**{**data, "archs": tuple(data["archs"])})
        for arch in found.archs:
            if not ARCH.fullmatch(arch):
                raise ValueError(f"{arch!r} is no capability")
        if not isinstance(found.torch, str) or found.codebook not in set(Codebook):
            raise ValueError(f"torch {found.torch!r}, codebook {found.codebook!r}")
        return found

    def check(self, torch: str, capability: tuple[int, int]) -> None:
        """Nothing, or an ``Exl3Error`` for another torch or another GPU.

        Machine code of ``X.Ya`` runs on capability X.Y alone, that of ``X.Y`` on X.Z
        for Z >= Y, that of ``X.Yf`` within its family likewise.
        """
        if self.torch != torch:
            raise Exl3Error(
                f"the EXL3 kernels were built for torch {self.torch}, this is {torch}",
                hint=REBUILD,
            )
        if not any(runs_on(arch, capability) for arch in self.archs):
            here = f"{capability[0]}.{capability[1]}"
            raise Exl3Error(
                f"the EXL3 kernels were built for {', '.join(self.archs)}, this GPU "
                f"has capability {here}",
                hint=f"TORCH_CUDA_ARCH_LIST={here} {REBUILD}",
            )


def runs_on(arch: str, capability: tuple[int, int]) -> bool:
    """Whether machine code of ``arch`` runs on a GPU of ``capability``."""
    major, _, minor = arch.rstrip("af").partition(".")
    if int(major) != capability[0]:
        return False
    if arch.endswith("a"):
        return int(minor) == capability[1]
    return int(minor) <= capability[1]


def cache_folder() -> Path:
    """Where objects and downloads are kept: XDG_CACHE_HOME or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "vllm_exl3"


def default_folder() -> Path:
    """Where the extension is looked for.

    ``EXL3_KERNELS`` names the folder; else it is the package's own, and last the
    cache, where ``python -m vllm_exl3.build`` puts it.
    """
    named = os.environ.get("EXL3_KERNELS")
    if named:
        return Path(named)
    own = Path(__file__).parent
    return own if (own / MANIFEST).exists() else cache_folder() / "kernels"


@lru_cache(maxsize=1)
def load() -> ModuleType:
    """The extension as a module, after its checks; ``Exl3Error`` says what is wrong."""
    import torch

    folder = default_folder()
    Manifest.read(folder).check(torch.__version__, torch.cuda.get_device_capability())
    spec = importlib.util.spec_from_file_location(MODULE, folder / LIBRARY)
    if spec is None or spec.loader is None:
        raise Exl3Error(f"{folder / LIBRARY} is no extension", hint=REBUILD)
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise Exl3Error(
            f"{folder / LIBRARY} does not load: {error}", hint=REBUILD
        ) from error
    return module
