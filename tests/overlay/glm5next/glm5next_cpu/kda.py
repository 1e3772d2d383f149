"""Kimi delta attention with a bounded gate, token by token, in float32.

State S of a head is [value, key]. A token decays it along the key, corrects what it
holds for its key and reads it with its query:

    S <- S * exp(g);  S <- S + beta * (v - S k) k^T;  o = S q / sqrt(d)
    g = lower_bound * sigmoid(exp(A_log) * (raw + bias)), beta = sigmoid(raw)
"""

import torch

NORM_EPS = 1e-6


def decay(raw, a_log, bias, lower_bound):
    """The log decay [tokens, heads, key] of raw gate values of that shape.

    ``a_log`` holds one value a head, ``bias`` one a head and key.
    """
    heads, width = raw.shape[-2:]
    rate = a_log.float().reshape(heads, 1).exp()
    shifted = raw.float() + bias.float().reshape(heads, width)
    return lower_bound * torch.sigmoid(rate * shifted)


def unit(x):
    """Rows of length one, in float32."""
    x = x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + NORM_EPS)


def recur(q, k, v, *, g, beta, state):
    """(outputs [tokens, heads, value], last state) of one sequence.

    ``q``, ``k``, ``g`` are [tokens, heads, key], ``v`` [tokens, heads, value],
    ``beta`` [tokens, heads] after its sigmoid, ``state`` [heads, value, key].
    """
    q, k, v = unit(q) * q.shape[-1] ** -0.5, unit(k), v.float()
    state, outputs = state.float(), []
    for token in range(q.shape[0]):
        key = k[token].unsqueeze(1)
        state = state * g[token].unsqueeze(1).exp()
        missing = v[token] - (state * key).sum(-1)
        change = beta[token].float().unsqueeze(-1) * missing
        state = state + change.unsqueeze(-1) * key
        outputs.append((state * q[token].unsqueeze(1)).sum(-1))
    return torch.stack(outputs), state
