"""Start-up time: what an import would spend on things that this tool does not use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

PLUGINS = "PYDANTIC_DISABLE_PLUGINS"


@contextmanager
def without_plugins() -> Iterator[None]:
    """Let models be made in the block without a search for pydantic's plugins.

    The search reads the metadata of every installed package, 80 ms. The variable is
    as it was afterwards: no rank inherits it.
    """
    before = os.environ.get(PLUGINS)
    os.environ[PLUGINS] = "__all__"
    try:
        yield
    finally:
        if before is None:
            del os.environ[PLUGINS]
        else:
            os.environ[PLUGINS] = before
