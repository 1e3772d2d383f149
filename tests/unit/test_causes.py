"""First causes and remedies, found in logs as vLLM writes them."""

from __future__ import annotations

import pytest
from glmspark.causes import SIGNATURES, bare, first_cause, hint_for

WORKER = """\
INFO 11-30 22:57:00 [api.py:1] starting
(Worker_TP0 pid=17) ERROR 11-30 22:57:09 [w.py:3] Traceback (most recent call last):
(Worker_TP0 pid=17) ERROR 11-30 22:57:09 [w.py:3]   File "x.py", line 3, in load
(Worker_TP0 pid=17) ERROR 11-30 22:57:09 [w.py:3] torch.DistNetworkError: EADDRINUSE
(EngineCore pid=9) ERROR 11-30 22:57:10 [core.py:1] Traceback (most recent call last):
(EngineCore pid=9) RuntimeError: Engine core initialization failed. See above.
RuntimeError: Engine core initialization failed. See root cause.
"""


def test_the_first_real_exception_is_the_cause() -> None:
    assert first_cause(WORKER) == "torch.DistNetworkError: EADDRINUSE"


def test_what_the_tool_says_comes_before_everything() -> None:
    log = "ValueError: x\nerror: /m holds no model\nhint: link it\n"
    assert first_cause(log) == "/m holds no model"


def test_an_echo_is_the_cause_only_when_nothing_else_is_there() -> None:
    echo = "RuntimeError: Engine core initialization failed. See root cause above."
    assert first_cause(echo) == echo
    assert first_cause(echo + "\nValueError: first") == "ValueError: first"


def test_plain_words_count_when_there_is_no_exception() -> None:
    assert first_cause("all well\nSegmentation fault (core dumped)") == (
        "Segmentation fault (core dumped)"
    )


@pytest.mark.parametrize(
    "log", ["", "all is well\n", "an Error in prose: not one", "INFO ValueError later"]
)
def test_a_log_without_failure_has_no_cause(log: str) -> None:
    assert first_cause(log) == ""


def test_prefixes_are_taken_off() -> None:
    line = "(VllmWorker-1 pid=5) WARNING 11-30 22:00:01 [a/b.py:77] words"
    assert bare(line) == "words"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("DistNetworkError: port: 29555 EADDRINUSE", "holds a port"),
        ("DistStoreError: Timed out after 61 seconds waiting for clients", "never"),
        ("The client socket has timed out after 60000ms while trying to connect", "f"),
        ("Gloo connectFullMesh failed with ...", "every TCP port"),
        ("ValueError: Unknown quantization method: exl3", "plugin"),
        ("InvalidCxxCompiler: none", "TORCH_COMPILE_DISABLE"),
        ("ibv_create_qp failed: errno 61", "GID"),
        ("transport retry counter exceeded", "MTU"),
        ("RuntimeError: on b: the kernel killed it for lack of memory", "largest"),
        ("rank 1 lost the fabric: device c7 is down", "the cable"),
        ("ibv_reg_mr: Cannot allocate memory", "memlock"),
        ("OSError: [Errno 28] No space left on device", "disk"),
    ],
)
def test_known_failures_have_remedies(text: str, part: str) -> None:
    assert part in hint_for(text)


def test_every_signature_is_tried_by_the_test_above() -> None:
    assert len(SIGNATURES) == 12


def test_an_unknown_failure_has_no_remedy() -> None:
    assert hint_for("something else") == ""
