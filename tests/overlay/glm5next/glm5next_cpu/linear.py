"""The KDA reference where vLLM's model calls its Triton kernels."""

from itertools import pairwise

import torch

from glm5next_cpu import kda


def gather_initial_states(state, indices, has_initial_state):
    """Copies of the states at ``indices``; zeros for sequences that begin."""
    found = state[indices.long()]
    return found * has_initial_state.view(-1, *[1] * (state.ndim - 1)).to(found.dtype)


class ScatterStates:
    """Writes states to their places in the cache."""

    def register_warmup(self, **_):
        """Nothing to compile."""

    def __call__(self, state, src, indices):
        """``state[indices] = src``."""
        state[indices.long()] = src.to(state.dtype)


def spans(cu_seqlens):
    """(number, slice) of each sequence that has tokens."""
    starts = cu_seqlens.tolist()
    numbered = enumerate(pairwise(starts))
    return [(number, slice(a, b)) for number, (a, b) in numbered if b > a]


def chunk_kda(*, q, k, v, raw_g, beta, initial_state, **rest):
    """Prefill: (outputs like ``v``, last states); tensors are [1, tokens, heads, …].

    ``beta`` has been through its sigmoid; ``initial_state`` is one state a sequence.
    """
    assert rest["safe_gate"] and rest["use_qk_l2norm_in_kernel"]
    g = kda.decay(raw_g[0], rest["A_log"], rest["g_bias"], rest["lower_bound"])
    out, last = torch.empty_like(v), initial_state.clone()
    for number, at in spans(rest["cu_seqlens"]):
        outputs, state = kda.recur(
            q[0, at],
            k[0, at],
            v[0, at],
            g=g[at],
            beta=beta[0, at],
            state=initial_state[number],
        )
        out[0, at], last[number] = outputs.to(out.dtype), state.to(last.dtype)
    return out, last


def recurrent_kda(*, q, k, v, g, beta, initial_state, ssm_state_indices, **rest):
    """Decode: outputs like ``v``; states are read and written in the cache.

    ``initial_state`` is the cache, ``ssm_state_indices`` a block a sequence, 0 and
    less for padding.
    """
    assert rest["compute_gate"] and rest["sigmoid_beta"]
    assert rest.get("num_accepted_tokens") is None, "no speculative decoding here"
    decay = kda.decay(g[0], rest["a_log"], rest["g_bias"], rest["lower_bound"])
    out = rest.get("out")
    out = torch.empty_like(v) if out is None else out
    for number, at in spans(rest["cu_seqlens"]):
        block = int(ssm_state_indices[number])
        if block <= 0:
            continue
        outputs, state = kda.recur(
            q[0, at],
            k[0, at],
            v[0, at],
            g=decay[at],
            beta=beta[0, at].float().sigmoid(),
            state=initial_state[block],
        )
        out[0, at] = outputs.to(out.dtype)
        initial_state[block] = state.to(initial_state.dtype)
    return out, initial_state


def install():
    """Replace what vLLM's KDA layer has imported; its own code stays."""
    from vllm.models.glm5next.common import kda as layer

    layer.gather_initial_states = gather_initial_states
    layer.scatter_states = ScatterStates()
    layer.chunk_kda_with_fused_gate = chunk_kda
    layer.fused_recurrent_kda = recurrent_kda
