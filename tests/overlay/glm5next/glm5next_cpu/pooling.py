"""The kpool indexer's arithmetic: pooled fp8 keys, scores, and the tokens they select.

Four tokens make a pool. Its key is their softmax-weighted sum, rotated by a Hadamard
matrix and kept as fp8 with a power-of-two scale; a query scores it by

    sum over heads of weight * relu(query . key)
"""

import torch

FP8 = torch.float8_e4m3fn
LARGEST = 448.0
SMALLEST = 1e-4


def rotate(x):
    """Rows of 128 times the Hadamard matrix over sqrt(128), in bf16."""
    width = x.shape[-1]
    y, step = x.float().reshape(-1, width), 1
    while step < width:
        pairs = y.reshape(-1, width // (2 * step), 2, step)
        low, high = pairs[:, :, 0], pairs[:, :, 1]
        y = torch.stack((low + high, low - high), 2).reshape(-1, width)
        step *= 2
    return (y * width**-0.5).reshape(x.shape).bfloat16()


def quantize(x):
    """(fp8 rows, float32 scale [rows, 1]): the largest value fits, scales are 2**n."""
    wide = x.float()
    most = wide.abs().amax(-1, keepdim=True).clamp_min(SMALLEST)
    scale = torch.exp2(torch.ceil(torch.log2(most / LARGEST)))
    return (wide / scale).clamp(-LARGEST, LARGEST).to(FP8), scale


def pool_key(keys, gates, positions):
    """The bf16 key of a pool: ``keys`` and ``gates`` are [pool, width].

    ``positions`` is what the model adds to a gate at each place of the pool.
    """
    share = torch.softmax(gates.float() + positions.float(), dim=0)
    return (share * keys.float()).sum(0).bfloat16()


def scores(query, weights, keys, scales):
    """Scores [pools] of one token: ``query`` fp8 [heads, width], ``keys`` fp8."""
    products = torch.relu(query.float() @ keys.float().T)
    return (weights.float() @ products) * scales.reshape(-1).float()


def selected_tokens(found, length, pool, budget):
    """Indices of the tokens that a query at place ``length - 1`` sees, in order.

    ``found`` are its scores of the ``length // pool`` whole pools; the best
    ``budget // pool`` of them and the tokens behind the last whole pool are taken.
    """
    pools = length // pool
    best = torch.topk(found[:pools], min(budget // pool, pools)).indices
    first = best.sort().values * pool
    tokens = (first[:, None] + torch.arange(pool)).reshape(-1)
    return torch.cat((tokens, torch.arange(pools * pool, length)))
