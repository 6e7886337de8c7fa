"""The Brownian Motion in the Transformer Model (Chen, 13 July 2021, arXiv 2107.05264).

Claim: self-attention between layer-normalised tokens is one step of a Markov chain on a sphere, the tokens' update is a
Brownian motion, and so attention should be trained with a second-order method, CG-FAC (Algorithm 1), for speed and for
accuracy.  The paper has no experiment, no table and no number.

`walk.py` implements sections 2.2-2.3 and 3.1-3.2 and measures the same quantities in a trained network; `findings.py`
checks the claims with them.  `vit.py` is the network of an experiment that we had to invent; its arms are SGD, Adam,
K-FAC and CG-FAC.  The optimisers are `stages.optim.cg_fac` and `kfac`.  Deviations: docs/papers/brownian.md.
"""

from stages.papers.brownian.vit import ViT

__all__ = ["ViT"]
