"""EXL3 weights in vLLM: a plugin of the group ``vllm.general_plugins``.

``format`` is the reference decoder (torch, no vLLM), ``quantizer`` the encoder,
``schema`` what ``config.json`` may say, ``config``/``moe``/``linear``/``loader`` the
vLLM side, ``dispatch`` the choice of a kernel, ``cuda``/``build`` the CUDA side.
"""

from __future__ import annotations

__version__ = "0.1.0"


def register() -> None:
    """Make ``quant_method: exl3`` known to vLLM.

    vLLM calls this in every one of its processes, some of them twice; a second call
    changes nothing. The method must be known before any model config is read, which
    is why the import is here and not at the first use.
    """
    from vllm_exl3.config import register_once

    register_once()
