"""What holds around an operation: no interruption half-way, and a head to run it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from glmspark.errors import ConfigError
from glmspark.schema import Kit


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back for the length of the block.

    By handlers, not by a signal mask: programs started in the block would inherit the
    mask and could never be asked to stop.
    """
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda n, _frame: came.append(n))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


def require_head(kit: Kit) -> None:
    """See that the head is this machine.

    Raises:
        ConfigError: it is reached by ssh.
    """
    head = kit.nodes[0]
    if head.ssh != "local":
        raise ConfigError(
            f"the head {head.name} is reached by ssh ({head.ssh}); ranks are started "
            "from the head itself",
            hint=f'run this on {head.name}, with ssh = "local" for it in kit.toml',
            node=head.name,
        )
