"""Logits of flash-linear-attention (fla) on a GPU, for tests/interop/fla_logits.sh.

  fla_logits.py read DIR FILE          loads the model directory DIR, writes its input_ids and logits to FILE
  fla_logits.py make BACKBONE DIR FILE makes a model with random weights of fla's own, saves it to DIR, writes FILE

The model computes in bfloat16.
"""

import sys

import torch
from fla_common import import_fla
from safetensors.torch import save_file

PROMPT_TOKENS = 256
SIZES = {  # hidden size, and the head sizes of the published models
    "delta_net": dict(hidden_size=512, num_heads=4),
    "gated_deltanet": dict(hidden_size=1024, num_heads=2, head_dim=256, expand_v=2),
    "kda": dict(hidden_size=512, num_heads=4, head_dim=128),
}


def main():
    transformers = import_fla()
    torch.manual_seed(1)
    if sys.argv[1] == "make":
        backbone, directory, output = sys.argv[2:]
        config = transformers.AutoConfig.for_model(
            backbone, num_hidden_layers=2, vocab_size=512, **SIZES[backbone]
        )
        model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
        model.save_pretrained(directory)
    else:
        directory, output = sys.argv[2:]
        model = transformers.AutoModelForCausalLM.from_pretrained(directory).to(torch.bfloat16)
    model = model.cuda().eval()
    ids = torch.randint(3, model.config.vocab_size, (2, PROMPT_TOKENS)).cuda()
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits.float()
    if not torch.isfinite(logits).all():
        sys.exit("fla gave logits that are not finite")
    save_file({"input_ids": ids.cpu(), "logits": logits.cpu()}, output)


main()
