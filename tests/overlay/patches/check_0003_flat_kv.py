from types import SimpleNamespace

import pytest
from vllm.model_executor.layers.attention.mla_attention import MLAAttention


def flat(backend, dtype="fp8_ds_mla"):
    layer = SimpleNamespace(
        attn_backend=SimpleNamespace(get_name=lambda: backend), kv_cache_dtype=dtype
    )
    return MLAAttention._uses_flat_kv_cache(layer)


def test_sm12x_backend_is_warmed_up():
    assert flat("FLASHINFER_MLA_SPARSE_SM120")


@pytest.mark.parametrize(
    ("backend", "dtype", "expected"),
    [
        ("FLASHINFER_MLA_SPARSE", "fp8", True),
        ("FLASHMLA_SPARSE", "auto", True),
        ("FLASHMLA_SPARSE", "fp8_ds_mla", False),
        ("TRITON_MLA", "auto", False),
    ],
)
def test_both_others_as_before(backend, dtype, expected):
    assert flat(backend, dtype) is expected
