"""The tiny model by transformers, which implements it on its own, in float32.

Reads a JSON list of objects with ``model``, ``prompts`` and ``tokens`` and prints, for
each, the tokens that greedy decoding takes after the same prefixes and the log
probabilities of the given ones. It needs no vLLM, no EXL3, no cache and no pages: one
forward pass over the whole sequence.
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
    chosen = steps[range(len(tokens)), tokens]
    return {"tokens": steps.argmax(-1).tolist(), "logprobs": chosen.tolist()}


@torch.no_grad()
def main():
    found = []
    for job in json.load(sys.stdin):
        model, head = load(Path(job["model"]))
        pairs = zip(job["prompts"], job["tokens"], strict=True)
        answers = [answer(model, head, *pair) for pair in pairs]
        found.append({key: [one[key] for one in answers] for key in answers[0]})
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
