"""Rendered command lines through vLLM 0.32.0's own parser and configuration classes.

For each argv list: what the parser made of it, after the configuration classes took
it. Asked by test_render_vllm.py.
"""

from __future__ import annotations

import argparse
import dataclasses

from vllm.config import CacheConfig, ParallelConfig, SchedulerConfig
from vllm.config.compilation import CompilationConfig
from vllm.config.model import ModelConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
from vllm.transformers_utils.config import get_config
from vllm.utils.argparse_utils import FlexibleArgumentParser

PARSED = [
    "tensor_parallel_size",
    "nnodes",
    "node_rank",
    "master_addr",
    "master_port",
    "headless",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "kv_cache_memory_bytes",
    "cudagraph_capture_sizes",
    "enable_expert_parallel",
    "mm_encoder_tp_mode",
    "tool_call_parser",
    "speculative_config",
    "hf_overrides",
    "limit_mm_per_prompt",
    "model_loader_extra_config",
    "long_prefill_token_threshold",
]


def parser():
    root = FlexibleArgumentParser(prog="vllm")
    commands = root.add_subparsers(required=True, dest="subparser")
    serve = ServeSubcommand()
    serve.subparser_init(commands)
    return root, serve


def plain(value):
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value


def target_config(args: EngineArgs):
    """The checkpoint's configuration under the line's overrides, applied by vLLM."""
    config = get_config(args.model, trust_remote_code=False)
    blank = object.__new__(ModelConfig)
    blank._apply_dict_overrides(config, args.hf_overrides or {})
    text = config.text_config
    return {
        "heads": text.num_attention_heads,
        "kda_heads": text.linear_num_heads,
        "experts": text.n_routed_experts,
    }


def classes(args: EngineArgs):
    ParallelConfig(
        tensor_parallel_size=args.tensor_parallel_size,
        nnodes=args.nnodes,
        node_rank=args.node_rank,
        master_addr=args.master_addr,
        master_port=args.master_port,
        distributed_executor_backend=args.distributed_executor_backend,
        enable_expert_parallel=args.enable_expert_parallel,
    )
    SchedulerConfig(
        max_num_batched_tokens=args.max_num_batched_tokens,
        max_num_seqs=args.max_num_seqs,
        max_model_len=args.max_model_len,
        is_encoder_decoder=False,
        long_prefill_token_threshold=args.long_prefill_token_threshold,
    )
    CacheConfig(
        cache_dtype=args.kv_cache_dtype,
        kv_cache_memory_bytes=args.kv_cache_memory_bytes,
        gpu_memory_utilization=args.gpu_memory_utilization,
        enable_prefix_caching=args.enable_prefix_caching,
        mamba_ssm_cache_dtype=args.mamba_ssm_cache_dtype,
    )
    CompilationConfig(cudagraph_capture_sizes=args.cudagraph_capture_sizes)


def answer(root, serve, argv):
    known = set(ReasoningParserManager.list_registered())
    tools = set(ToolParserManager.list_registered())
    try:
        args = root.parse_args(argv[1:])
        args.model = args.model_tag  # as ServeSubcommand.cmd does
        serve.validate(args)
        engine = EngineArgs.from_cli_args(args)
        classes(engine)
    except (SystemExit, ValueError, argparse.ArgumentError) as error:
        return {"error": repr(error)}
    found = {name: plain(getattr(args, name, None)) for name in PARSED}
    return {
        "parsed": found,
        "target": target_config(engine),
        "tool parser known": args.tool_call_parser in tools,
        "reasoning parser known": engine.reasoning_parser in known
        or args.structured_outputs_config.reasoning_parser in known,
    }


def answers(cases):
    """One dict an argv list; see :func:`answer`."""
    made = parser()
    return [answer(*made, argv) for argv in cases]
