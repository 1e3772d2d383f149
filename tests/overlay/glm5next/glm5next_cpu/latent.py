"""Attention of latent queries over latent rows, and RMSNorm, in float32; torch only."""

import torch


def attend(query, rows, scale):
    """[heads, latent]: softmax(query rows^T * scale) rows, for one token.

    ``query`` is [heads, latent], ``rows`` the [tokens, latent] that it sees.
    """
    rows = rows.float()
    share = torch.softmax(query.float() @ rows.T * scale, dim=-1)
    return share @ rows


def rms_norm(x, weight, eps):
    """RMSNorm in float32, in ``x``'s type."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * weight.float()).to(x.dtype)
