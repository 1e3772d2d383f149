"""The tiny model by transformers, which implements it on its own, in float32.

``python transformers_oracle.py FOLDER`` reads ``{"prompts": [[...]], "tokens": [[...]]}``
and prints for each the tokens that greedy decoding takes after the same prefix, their
log probabilities, and how far the next best is behind. It needs no vLLM, no EXL3, no
cache and no pages: one forward pass over the whole sequence.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import Glm5NextTextConfig
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextModel


def load(folder):
    """(model, output table); every parameter is in the file under its own name."""
    text = json.loads((folder / "config.json").read_text())["text_config"]
    text |= {"pad_token_id": 0, "attn_implementation": "eager"}
    model, info = Glm5NextTextModel.from_pretrained(
        folder,
        config=Glm5NextTextConfig(**text),
        dtype=torch.float32,
        output_loading_info=True,
    )
    last = f"model.layers.{text['num_hidden_layers']}."  # the draft layer is not built
    unknown = {n for n in info["unexpected_keys"] if not n.startswith(last)}
    assert (
        not info["missing_keys"]
        | info["mismatched_keys"]
        | unknown - {"lm_head.weight"}
    ), info
    head = load_file(folder / "model.safetensors")["lm_head.weight"]
    return model.eval(), head.float()


def answer(model, head, prompt, tokens):
    """What greedy decoding says along ``tokens``."""
    ids = torch.tensor([prompt + tokens[:-1]])
    hidden = model(input_ids=ids, use_cache=False).last_hidden_state[0]
    steps = torch.log_softmax(hidden[len(prompt) - 1 :] @ head.T, -1)
    best = steps.topk(2, -1)
    chosen = steps[range(len(tokens)), tokens]
    return {
        "tokens": best.indices[:, 0].tolist(),
        "logprobs": chosen.tolist(),
        "margins": (best.values[:, 0] - best.values[:, 1]).tolist(),
    }


@torch.no_grad()
def main():
    model, head = load(Path(sys.argv[1]))
    job = json.load(sys.stdin)
    pairs = zip(job["prompts"], job["tokens"], strict=True)
    found = [answer(model, head, prompt, tokens) for prompt, tokens in pairs]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
