"""Small versions of NMN's language models under the paper's protocol, and the amount of text they read."""

from stages.run import OptimizerSpec, Protocol, RunSpec, SplitSpec
from tests.project import make_spec

VOCABULARY, CONTEXT, WINDOWS = 50, 16, 36
MODELS = ("stages.papers.nmn.gpt:GPT2", "stages.papers.nmn.gpt:AetherGPT")
# Like params/nmn-gpt.yaml but small. The 29 training windows don't divide evenly: the last batch has one.
PROTOCOL = Protocol(
    optimizer=OptimizerSpec(name="adamw", lr=0.001, weight_decay=0.1, betas=(0.9, 0.95), decay="kernels"),
    batch_size=7,
    epochs=3,
    split=SplitSpec(kind="fraction", fraction=0.2),
)


def spec_of(model: str, protocol: Protocol = PROTOCOL, *, dropout: float = 0.0) -> RunSpec:
    arguments = {"vocabulary_size": VOCABULARY, "context": CONTEXT, "width": 16, "depth": 2, "num_heads": 2}
    if model.endswith("AetherGPT"):
        arguments |= {"attention": "yat", "scale": "guide", "epsilon": 0.1}
    return make_spec(model, arguments | {"dropout": dropout}, protocol)
