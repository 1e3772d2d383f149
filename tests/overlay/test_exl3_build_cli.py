"""``python -m vllm_exl3.build`` under bad arguments, kills, full disks and company.

A stand-in takes nvcc's place: it notes what it is asked for and writes a file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from vllm_exl3 import build, kernel_file, upstream
from vllm_exl3.kernel_file import Manifest

REPO = Path(__file__).parents[2]
OLD = Manifest("2.0", ("9.0a",), 4, 1, "0" * 64)
UNITS = len(build.UNITS) + 4  # three of this package, and the stubs
NVCC = """#!/bin/sh
if [ "$1" = --version ]; then echo "release 13.0"; exit 0; fi
for last; do :; done
unit=$(basename "$last")
echo "$unit" >> "$NVCC_LOG"
if [ "$unit" = "$NVCC_FAILS" ]; then
  echo "fatal: No space left on device" >&2; exit 1
fi
if [ "$unit" = "$NVCC_HANGS" ]; then sleep 60; fi
echo "$unit" > "$last"
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="session")
def source() -> Path:
    """exllamav3's pinned wheel, by pip; kept in the cache between runs."""
    cache = kernel_file.cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    return upstream.fetch(cache)


@pytest.fixture
def start(tmp_path: Path, source: Path) -> Iterator[Start]:
    """Start a build of ``tmp_path/out`` with the stand-in, given more arguments."""
    begun: list[subprocess.Popen[str]] = []
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(NVCC)
    nvcc.chmod(0o755)

    def begin(
        *arguments: str, few_bytes: bool = False, **env: str
    ) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "vllm_exl3.build", "--nvcc", str(nvcc)]
        command += ["--source", str(source), "--cache", str(tmp_path / "cache")]
        command += ["--out", str(tmp_path / "out"), "--jobs", "1", *arguments]

        if few_bytes:
            command = ["sh", "-c", 'ulimit -f 2; exec "$@"', "sh", *command]
        paths = {"PYTHONPATH": str(REPO / "overlay"), "NVCC_LOG": str(tmp_path / "log")}
        process = subprocess.Popen(
            command,
            env=os.environ | paths | {"NVCC_HANGS": "", "NVCC_FAILS": ""} | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        begun.append(process)
        return process

    yield begin
    for process in begun:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def asked(folder: Path) -> list[str]:
    """What the stand-in was asked for."""
    log = folder / "log"
    return log.read_text().split() if log.exists() else []


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--bits", "0"], 2, "argument --bits: invalid choice: 0"),
        (["--bits", "9"], 2, "argument --bits: invalid choice: 9"),
        (["--bits", "2.5"], 2, "argument --bits: invalid int value"),
        (["--codebook", "3inst"], 2, "argument --codebook: invalid choice: '3inst'"),
        (["--jobs", "0"], 2, "'0' is no number above 0"),
        (["--arch", "GB10"], 3, "arch list 'GB10' is no list of capabilities"),
        (["--nvcc", "/no/nvcc"], 5, "no program /no/nvcc; install CUDA 13's compiler"),
        (["--nvcc", "/etc/passwd"], 5, "cannot run /etc/passwd"),
        (["--source", "/no/wheel"], 5, "error: /no/wheel: No such file or directory"),
        (["--source", "/etc/passwd"], 7, "/etc/passwd has sha256"),
        (["--patches", "/etc"], 3, "/etc holds no patch for exllamav3"),
        (["--out", "/proc/none"], 5, "error: /proc/none: No such file or directory"),
    ],
)
def test_a_bad_argument_is_one_line(
    start: Start, arguments: list[str], status: int, message: str, tmp_path: Path
) -> None:
    process = start(*arguments)
    out, err = process.communicate(timeout=300)
    assert process.returncode == status
    assert message in err
    assert "Traceback" not in err
    assert out == ""
    assert asked(tmp_path) == []


def test_a_full_disk_is_named(start: Start, tmp_path: Path) -> None:
    """Where the compiler meets it, and where this program does."""
    process = start(NVCC_FAILS="hadamard.cu.part")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 5
    assert "compiling hadamard.cu failed with status 1" in err
    assert "No space left on device" in err
    process = start(few_bytes=True)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 5
    assert err.startswith("error: ")
    assert "File too large" in err
    assert "Traceback" not in err
    assert not (tmp_path / "out" / kernel_file.MANIFEST).exists()


def test_a_killed_build_is_taken_up(start: Start, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    OLD.write(out)
    (out / kernel_file.LIBRARY).write_text("old")
    process = start(NVCC_HANGS="exl3_moe.cu.part")
    while "exl3_moe.cu.part" not in asked(tmp_path):
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert Manifest.read(out) == OLD
    assert (out / kernel_file.LIBRARY).read_text() == "old"
    done = asked(tmp_path)
    process = start()
    text, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert text.strip() == str(out / kernel_file.LIBRARY)
    assert Manifest.read(out).archs == ("12.1a",)
    again = asked(tmp_path)[len(done) :]
    assert set(again) & set(done) == {"exl3_moe.cu.part"}


def test_a_build_killed_at_its_link_leaves_nothing_that_loads(
    start: Start, tmp_path: Path
) -> None:
    """New machine code never stands beside an old manifest."""
    out = tmp_path / "out"
    out.mkdir()
    OLD.write(out)
    (out / kernel_file.MANIFEST).chmod(0o444)
    (out / f"{kernel_file.MANIFEST}.part").mkdir()  # the last write fails
    process = start()
    _, err = process.communicate(timeout=300)
    assert process.returncode == 5
    assert "Is a directory" in err
    assert not (out / kernel_file.MANIFEST).exists()


def test_two_builds_at_once_share_the_work(start: Start, tmp_path: Path) -> None:
    pair = [start(NVCC_HANGS=""), start(NVCC_HANGS="")]
    ends = [process.communicate(timeout=300) for process in pair]
    assert [process.returncode for process in pair] == [0, 0], ends
    link = [f"{kernel_file.LIBRARY}.part"] * 2
    compiled = [name for name in asked(tmp_path) if name not in link]
    assert len(compiled) == len(set(compiled)) == UNITS
    assert Manifest.read(tmp_path / "out").bits == 4


def test_the_second_build_says_that_it_waits(start: Start, tmp_path: Path) -> None:
    first = start(NVCC_HANGS="exl3_moe.cu.part")
    while "exl3_moe.cu.part" not in asked(tmp_path):
        assert first.poll() is None
        time.sleep(0.05)
    second = start()
    assert second.stderr is not None
    assert "another process works in" in second.stderr.readline()
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    _, err = second.communicate(timeout=300)
    assert second.returncode == 0, err


def test_ctrl_c_is_130(start: Start, tmp_path: Path) -> None:
    process = start(NVCC_HANGS="exl3_moe.cu.part")
    while "exl3_moe.cu.part" not in asked(tmp_path):
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert err == "interrupted\n"


def test_a_download_that_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing half-fetched stays, and what went bad is fetched again."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    wheel = tmp_path / upstream.pin()["file"]
    wheel.write_bytes(b"half")
    with pytest.raises(
        upstream.Exl3Error, match="downloading exllamav3 failed"
    ) as error:
        upstream.fetch(tmp_path)
    assert "or pass --source with exllamav3-1.6.5" in str(error.value)
    assert error.value.exit_code == 5
    assert list(tmp_path.iterdir()) == [wheel]
