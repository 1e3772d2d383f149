"""Find the first cause of a failure in the log of a rank, and its known remedy."""

from __future__ import annotations

import re
from dataclasses import dataclass

# vLLM puts "(Worker_TP0 pid=1) ERROR 11-30 22:57:00 [file.py:1] " before its lines.
_PREFIX = re.compile(
    r"^(\([^)]*pid=\d+\)\s*)?"
    r"((DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+\d\d-\d\d \d\d:\d\d:\d\d\s+)?"
    r"(\[[^\]]*\]\s*)?"
)
_EXCEPTION = re.compile(
    r"^((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Timeout|Interrupt))"
    r"(?::\s*(.*))?$"
)
# The tool's own words, when a rank cannot even become the engine.
_OURS = re.compile(r"^error: (.*)$")
_PLAIN = re.compile(r"(?i)\b(fatal|segmentation fault|cannot allocate|out of memory)\b")
# A failure that only reports another one; the first real one is looked for instead.
_ECHO = re.compile(
    r"(?i)engine core initialization failed|died unexpectedly|see root cause above|"
    r"see stack trace|EngineDeadError|Engine process failed to start"
)


@dataclass(frozen=True)
class Signature:
    """A known failure: how its text looks, and what mends it."""

    pattern: re.Pattern[str]
    hint: str


def _known(pattern: str, hint: str) -> Signature:
    return Signature(re.compile(pattern), hint)


SIGNATURES = (
    _known(
        r"(?i)EADDRINUSE|address already in use",
        "another program holds a port of the kit: the checks of a start name it, "
        "or set ports.master or serve.port",
    ),
    _known(
        r"Timed out after \d+ seconds waiting for clients",
        "a rank never joined: look at the other rank's log first",
    ),
    _known(
        r"client socket has timed out.*trying to connect",
        "the head's rendezvous port cannot be reached from this rank: "
        "check the fabric address and the firewall between the nodes",
    ),
    _known(
        r"Gloo connectFullMesh failed",
        "the ranks cannot reach each other: every TCP port must be open between the "
        "fabric addresses, and netdev must be the one that carries them",
    ),
    _known(
        r"Unknown quantization method",
        "the engine on this node lacks the EXL3 plugin; install the same engine on "
        "every node",
    ),
    _known(
        r"InvalidCxxCompiler|No working C\+\+ compiler",
        "set TORCH_COMPILE_DISABLE=1, which the tool does for CPU engines",
    ),
    _known(
        r"errno 61|No data available",
        "a GID of the RDMA device is empty: look it up again with `glmspark doctor`",
    ),
    _known(
        r"transport retry counter exceeded|vendor_err 0x81|vendor err 129",
        "packets are lost on the fabric: compare MTU and cabling of both ends",
    ),
    _known(
        r"(?i)lack of memory|out of memory",
        "glmspark doctor names the largest programs of each node; stop them, or lower "
        "serve.kv_cache_bytes",
    ),
    _known(
        r"the fabric: device \S+ (is down|has gone)",
        "see to the cable and the port, then: glmspark doctor",
    ),
    _known(
        r"(?i)cannot allocate memory|ENOMEM",
        "memory could not be registered or allocated: check memlock and free memory",
    ),
    _known(
        r"(?i)no space left on device",
        "free disk space, or set paths.cache and paths.state to a larger disk",
    ),
)


def bare(line: str) -> str:
    """``line`` without the prefix that vLLM's logger puts before it."""
    return _PREFIX.sub("", line, count=1).strip()


def first_cause(log: str) -> str:
    """The first line of ``log`` that names a failure; empty when none does.

    What the tool itself says comes first, then exceptions, then plain words; lines
    that merely report another process's failure come last.
    """
    lines = [bare(line) for line in log.splitlines()]
    for line in lines:
        if ours := _OURS.match(line):
            return ours[1]
    failures = [line for line in lines if _EXCEPTION.match(line)]
    for line in failures:
        if not _ECHO.search(line):
            return line
    for line in lines:
        if _PLAIN.search(line):
            return line
    return failures[0] if failures else ""


# Failures of the first connection that a second try has been seen to overcome: memory
# that could not be registered, a system call inside NCCL. Nothing else is tried again.
_AGAIN = re.compile(r"ibv_reg_mr|ncclSystemError|NCCL.*unhandled system error")


def deserves_retry(text: str) -> bool:
    """Whether a start that failed with ``text`` is worth one more try."""
    return bool(_AGAIN.search(text))


def hint_for(text: str) -> str:
    """The remedy of the first known signature in ``text``; empty when none is known."""
    for signature in SIGNATURES:
        if signature.pattern.search(text):
            return signature.hint
    return ""
