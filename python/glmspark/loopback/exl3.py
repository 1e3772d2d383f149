"""The loopback kit's model with EXL3 experts: what the ranks really serve.

The routed experts are random trellis words (every word is valid) in the real
checkpoint's contract; everything else is the tiny bf16 model. The plugin makes it, so
this needs the engine's environment, where the plugin is installed.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from glmspark.loopback import folder, model


def recipe() -> str:
    """sha256 over the code that makes the files, the plugin's included.

    Raises:
        ModuleNotFoundError: the plugin is not installed in this environment.
    """
    import vllm_exl3

    digest = hashlib.sha256(model.recipe().encode())
    for source in sorted(Path(vllm_exl3.__file__).parent.glob("*.py")):
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()


def files() -> dict[str, bytes]:
    """Every file of the EXL3 checkpoint, by name."""
    from vllm_exl3 import loopback

    with tempfile.TemporaryDirectory() as scratch:
        source, packed = Path(scratch) / "bf16", Path(scratch) / "exl3"
        source.mkdir()
        for name, content in model.files().items():
            (source / name).write_bytes(content)
        loopback.make(source, packed)
        return {path.name: path.read_bytes() for path in sorted(packed.iterdir())}


def build_exl3_model(directory: Path) -> folder.GeneratedModel:
    """The tiny model with EXL3 experts in ``directory``, made unless it is whole.

    Its weights are random, from fixed seeds. Raises OSError where the folder cannot
    be written, FileExistsError where it holds something else.
    """
    return folder.ensure(directory, recipe(), files)
