"""The locks that ship with the tool, and how a user's word becomes a manifest."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

from glmspark.errors import ConfigError
from glmspark.weights import manifest as manifests
from glmspark.weights.manifest import Manifest
from glmspark.weights.store import Store

# The two that `fetch` takes when nothing is named.
ALIASES = {
    "target": "glm-5.3-flash-exl3-4bpw",
    "drafter": "glm-5.3-flash-dflash2",
}


def builtin(name: str) -> Manifest:
    """The shipped manifest behind the alias or lock name ``name``."""
    file = f"{ALIASES.get(name, name)}.lock.json"
    folder = resources.files("glmspark") / "data" / "weights"
    return manifests.from_json(json.loads((folder / file).read_text()), file)


def builtins() -> dict[str, Manifest]:
    """Alias -> shipped manifest."""
    return {alias: builtin(alias) for alias in ALIASES}


def _matches(manifest: Manifest, name: str, revision: str) -> bool:
    names = {manifest.repo, manifest.slug, manifest.ref}
    is_named = name in names or name.lower() == manifest.repo.lower()
    return is_named and manifest.revision.startswith(revision)


def select(store: Store | None, word: str) -> Manifest:
    """The one manifest that ``word`` means.

    A word is a lock file, an alias (``target``, ``drafter``), a name from ``list``, or
    ``repo[@revision]`` (a commit or its beginning) of a shipped or stored manifest.
    Raises ConfigError if it is none or several; what is known is listed then. No
    revision is ever guessed and nothing is asked of a network.
    """
    if word.endswith(".json") and Path(word).is_file():
        return manifests.load(Path(word))
    stored = store.manifests() if store is not None else {}
    if word in ALIASES:
        shipped = builtin(word)
        return stored.get(shipped.slug, shipped)
    name, _, revision = word.partition("@")
    known = {m.slug: m for m in builtins().values()} | stored
    found = [m for m in known.values() if _matches(m, name, revision)]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(sorted(m.ref for m in known.values()))
    if found:
        raise ConfigError(
            f"{word} can mean {', '.join(m.ref for m in found)}",
            hint="name the revision: repo@commit",
        )
    raise ConfigError(
        f"no lock is known for {word}; known are: {listed}",
        hint=f"glmspark weights lock {word}",
    )
