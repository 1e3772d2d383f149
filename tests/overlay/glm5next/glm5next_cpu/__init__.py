"""A plain torch reference of GLM-5.3-Flash's GPU kernels: a plugin for vLLM on a CPU.

``kda``, ``pooling`` and ``latent`` are the arithmetic, torch only; the others put it
where vLLM 0.32.0 calls its kernels. Slow, for tests; vLLM's model, loader, scheduler,
sharding and KV cache stay vLLM's.
"""


def register():
    """Put the reference in place, once in every process; nothing on a GPU."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from glm5next_cpu import vision

    vision.stand_in()
    from glm5next_cpu import indexer, linear, mhc, mla

    for part in (mhc, linear, mla, indexer):
        part.install()
