"""The drafter's weights through the engine's quantizer, one at a time and resumable."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from glmspark.boost.names import QUANTIZER
from glmspark.boost.work import Work
from glmspark.errors import (
    CommandError,
    ConfigError,
    ExitCode,
    GlmSparkError,
    IntegrityError,
    PreflightError,
)
from glmspark.serving.boost import remaining

_LOOK_S = 0.5
_END_S = 5.0
_KINDS: Mapping[int, type[GlmSparkError]] = {
    ExitCode.CONFIG: ConfigError,
    ExitCode.PREFLIGHT: PreflightError,
    ExitCode.INTEGRITY: IntegrityError,
}


@dataclass(frozen=True)
class Quantizer:
    """The program that quantizes: the engine's Python and the rate it works at.

    ``device`` is cuda for every user; tests that have no GPU hand cpu in.
    """

    python: str
    bits: float
    codebook: str = "mcg"
    device: str = "cuda"
    env: Mapping[str, str] | None = None

    def argv(self, source: Path, out: Path) -> tuple[str, ...]:
        """The command that quantizes weights of ``source`` into files in ``out``."""
        return (
            *(self.python, "-m", "vllm_exl3.tensorwise", str(source), str(out)),
            *("--bits", f"{self.bits:g}", "--codebook", self.codebook),
            *("--device", self.device, "--quantizer", QUANTIZER),
        )


def key_of(name: str) -> str:
    """The piece that keeps the weight ``name``; fit for a file name."""
    return f"draft-{hashlib.sha256(name.encode()).hexdigest()[:24]}"


def wanted(names: list[str], kinds: list[str]) -> list[str]:
    """The drafter's weights of ``kinds``, in order.

    Raises ConfigError for a kind of which there is none.
    """
    found = []
    for kind in kinds:
        ends = re.compile(rf"(?:^|\.)layers\.\d+\.{re.escape(kind)}\.weight$")
        some = [name for name in names if ends.search(name)]
        if not some:
            raise ConfigError(
                f"the drafter has no weight that ends in {kind}.weight",
                hint="correct build.drafter.layers in a copy of the profile",
            )
        found += some
    return sorted(found)


def quantize(  # noqa: PLR0913 (two of them are calls back)
    work: Work,
    source: Path,
    names: list[str],
    quantizer: Quantizer,
    *,
    watch: Callable[[], None],
    on_done: Callable[[str, float], None],
) -> None:
    """Make a piece of every weight of ``names`` that ``work`` does not hold.

    ``watch`` is called twice a second and raises to stop; the quantizer is ended then,
    and what it has finished is kept. Raises what the quantizer said, by exit status.
    """
    finished = {
        n: work.found.get(key_of(n), "") for n in names if work.check(key_of(n))
    }
    left = remaining(names, finished)
    if not left:
        return
    with work.scratch() as out:
        files = {name: f"{key_of(name)}.safetensors" for name in left}

        def take(row: Mapping[str, Any]) -> None:
            work.adopt(key_of(row["name"]), out / row["file"], row["sha256"])
            on_done(row["name"], row["relative_error"])

        with _running(quantizer, source, out, files) as child:
            _follow(child, take, watch)
    missing = remaining(names, {n: work.found.get(key_of(n), "") for n in names})
    if missing:
        raise CommandError(f"the quantizer ended without {missing[0]}")


@contextmanager
def _running(
    quantizer: Quantizer, source: Path, out: Path, files: Mapping[str, str]
) -> Iterator[subprocess.Popen[str]]:
    argv = quantizer.argv(source, out)
    env = None if quantizer.env is None else dict(quantizer.env)
    try:
        child = subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    except OSError as error:
        raise CommandError(
            f"cannot run {argv[0]}: {error.strerror}", hint="set paths.engine"
        ) from error
    assert child.stdin is not None  # noqa: S101 - a pipe was asked for
    try:
        child.stdin.write(json.dumps(files) + "\n")
        child.stdin.flush()  # and stays open: its end would end the child
        yield child
    except BrokenPipeError:
        yield child
    finally:
        _end(child)


def _end(child: subprocess.Popen[str]) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(_END_S)
        except subprocess.TimeoutExpired:
            child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()


def _follow(
    child: subprocess.Popen[str],
    take: Callable[[Mapping[str, Any]], None],
    watch: Callable[[], None],
) -> None:
    """Take each finished weight until the child has ended; raises what it failed of."""
    assert child.stdout is not None and child.stderr is not None  # noqa: S101
    rows: list[str] = []
    said: list[str] = []
    readers = [_reader(child.stdout, rows), _reader(child.stderr, said)]
    while True:
        over = child.poll() is not None
        if over:
            for reader in readers:
                reader.join()
        while rows:
            take(json.loads(rows.pop(0)))
        if over:
            break
        watch()
        readers[0].join(_LOOK_S)
    if child.returncode:
        words = " ".join(said[-3:]).strip().removeprefix("error: ")
        kind = _KINDS.get(child.returncode, CommandError)
        raise kind(f"the quantizer ended with status {child.returncode}: {words}")


def _reader(pipe: IO[str], lines: list[str]) -> threading.Thread:
    def read() -> None:
        for line in pipe:  # appended one by one: the other side takes them meanwhile
            if line.strip():
                lines.append(line.strip())

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread
