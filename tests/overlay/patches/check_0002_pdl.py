import sys
from types import ModuleType
from unittest import mock

import pytest
import torch

# The CUDA platform imports the CUDA extension for its side effect only.
for name in ("vllm._C_stable_libtorch", "vllm._moe_C_stable_libtorch"):
    sys.modules.setdefault(name, ModuleType(name))

from vllm.platforms.cuda import CudaPlatformBase  # noqa: E402


def supported(capability, monkeypatch, knob=None):
    monkeypatch.delenv("GLMSPARK_SM12X_PDL", raising=False)
    if knob is not None:
        monkeypatch.setenv("GLMSPARK_SM12X_PDL", knob)
    with (
        mock.patch.object(torch.cuda, "current_device", lambda: 0),
        mock.patch.object(torch.cuda, "get_device_capability", lambda _: capability),
    ):
        getattr(CudaPlatformBase.is_arch_support_pdl, "cache_clear", lambda: None)()
        return CudaPlatformBase.is_arch_support_pdl()


@pytest.mark.parametrize("knob", [None, "0", "yes"])
def test_off_on_gb10(monkeypatch, knob):
    assert supported((12, 1), monkeypatch, knob) is False


def test_both_on_where_asked_for(monkeypatch):
    assert supported((12, 1), monkeypatch, "1") is True


@pytest.mark.parametrize(("major", "on"), [(8, False), (9, True), (10, True)])
def test_both_others_as_before(monkeypatch, major, on):
    assert supported((major, 0), monkeypatch) is on
