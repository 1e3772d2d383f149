"""What must not leave the house does not, and what says something stays."""

from __future__ import annotations

import pytest
from glmspark.redact import Redactor

KEY = "Zk3-verysecretkeyvalue_09"


@pytest.mark.cases(134)
@pytest.mark.parametrize(
    ("text", "gone"),
    [
        (f"Authorization: Bearer {KEY}", KEY),
        ("Authorization: Bearer abcdefghij.klm", "abcdefghij"),
        ("HF_TOKEN=hf_AbCdEfGhIjKlMnOp", "hf_AbCd"),
        ('{"api_key": "p4ssw0rd-x"}', "p4ssw0rd"),
        ("VLLM_API_KEY=abcdefgh", "abcdefgh"),
        (
            "-----BEGIN A PRIVATE KEY-----\nAAAA\n-----END A PRIVATE KEY-----",
            "AAAA",
        ),
        ("kit-1:" + "A" * 86 + "==", "AAAA"),
        ("fabric 10.66.1.2/24", "10.66.1.2"),
        ("tcp://192.168.0.7:29555", "192.168.0.7"),
        ("inet6 fe80::1234:5678:9abc:def0/64", "fe80::"),
        ("GID 0000:0000:0000:0000:0000:ffff:0a42:0101", "0a42:0101"),
        ("link/ether 0C:42:a1:00:11:22", "42:a1"),
        ("/home/anna/models", "anna"),
        ("ssh anna@spark-1.lan", "anna"),
        ("host Spark-1 is up", "park-1"),
    ],
)
def test_it_is_gone(text: str, gone: str) -> None:
    names = ["anna", "spark-1.lan", "spark-1"]
    shown = Redactor([KEY], names).apply(text)
    assert gone.lower() not in shown.lower()


@pytest.mark.parametrize(
    "text",
    [
        "INFO 11-30 22:57:00 [core.py:1] std::string 0.32.0 driver 580.95.05",
        "listening on 127.0.0.1:8888 and 0.0.0.0",
        "pci 0000:01:00.0 port 1 max_num_seqs=4 tokens=128",
        "12:30:59 localhost root",
    ],
)
def test_what_says_something_stays(text: str) -> None:
    assert Redactor([], ["root", "localhost", "a"]).apply(text) == text


def test_the_same_thing_has_one_name_everywhere() -> None:
    redactor = Redactor([], ["spark-2"])
    one = redactor.apply("10.66.1.1 to 10.66.1.2")
    assert one == "<ip-1> to <ip-2>"
    assert redactor.apply("10.66.1.2 on spark-2") == "<ip-2> on <name-1>"
