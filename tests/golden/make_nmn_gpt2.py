"""Write nmn_gpt2.npz: a small GPT-2 of transformers in float64; weights, tokens, logits, gradients.

Origin: transformers (version inside), which this repository doesn't install. `model/<parameter>` uses its names, and
its Conv1D has weights [in, out]. `gradients/<parameter>` are those of sum(logits · logit_weights). Run from the
repository root where transformers is installed: python tests/golden/make_nmn_gpt2.py
"""

from pathlib import Path

import numpy as np
import torch
import transformers

PATH = Path(__file__).with_name("nmn_gpt2.npz")
VOCABULARY, CONTEXT, WIDTH, DEPTH, NUM_HEADS = 11, 8, 6, 2, 3


def make_vectors() -> dict[str, np.ndarray]:
    """Return all arrays of the file, with random weights to exercise every bias and LayerNorm."""
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=WIDTH, n_layer=DEPTH, n_head=NUM_HEADS
    )
    model = transformers.GPT2LMHeadModel(config).double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.5)
    tokens = torch.randint(VOCABULARY, (3, 7), generator=generator)
    logits = model(tokens).logits
    weights = torch.randn(logits.shape, generator=generator, dtype=torch.float64)
    (logits * weights).sum().backward()
    vectors = {
        "origin": np.array(f"transformers {transformers.__version__}, torch {torch.__version__}"),
        "tokens": tokens.numpy(),
        "logits": logits.detach().numpy(),
        "logit_weights": weights.numpy(),
    }
    for name, parameter in model.named_parameters():
        vectors[f"model/{name}"] = parameter.detach().numpy()
        vectors[f"gradients/{name}"] = parameter.grad.numpy()
    return vectors


if __name__ == "__main__":
    np.savez(PATH, **make_vectors())
