"""Hyper-connections with the layer's RMSNorm, which vLLM's CPU operators leave out.

Source of the omission: vllm model_executor/kernels/mhc/cpu.py@0.32.0, whose
``mhc_pre_cpu`` takes ``norm_weight`` and does not use it (its one caller there norms
elsewhere); the CUDA operator norms.
"""

from glm5next_cpu.latent import rms_norm


def normed(x, weight, eps):
    """RMSNorm where a weight is given."""
    return x if weight is None else rms_norm(x, weight, eps)


def install():
    """Out-of-tree replacements of vLLM's two operators, by vLLM's own registry."""
    from vllm.model_executor.custom_op import CustomOp
    from vllm.model_executor.kernels.mhc import mhc_post_torch, mhc_pre_torch
    from vllm.model_executor.layers import mhc

    class Pre(mhc.MHCPreOp):
        def forward_cpu(self, *args, n_splits=1, norm_weight=None, norm_eps=0.0, **kw):
            post, comb, x = mhc_pre_torch(*args, **kw)
            return post, comb, normed(x, norm_weight, norm_eps)

    class PostPre(mhc.MHCFusedPostPreOp):
        def forward_cpu(
            self,
            x,
            residual,
            post_layer_mix,
            comb_res_mix,
            *args,
            norm_weight=None,
            norm_eps=0.0,
            n_splits=1,
            tile_n=1,
            **kw,
        ):
            current = mhc_post_torch(x, residual, post_layer_mix, comb_res_mix)
            post, comb, out = mhc_pre_torch(current, *args, **kw)
            return current, post, comb, normed(out, norm_weight, norm_eps)

    class Post(mhc.MHCPostOp):
        def forward_cpu(self, *args):
            return mhc_post_torch(*args)

    CustomOp.register_oot(Pre, name="MHCPreOp")
    CustomOp.register_oot(PostPre, name="MHCFusedPostPreOp")
    CustomOp.register_oot(Post, name="MHCPostOp")
