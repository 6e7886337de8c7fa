"""Mahalanobis distances of SciPy, kernels of scikit-learn, and HyperBF units built from them, not by our code."""

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.metrics.pairwise import rbf_kernel

SAMPLES, CENTERS, WIDTH, VALUES = 5, 7, 6, 3


def make_vectors() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(SAMPLES, WIDTH))
    t = generator.normal(size=(CENTERS, WIDTH))
    c = generator.normal(size=(CENTERS, VALUES))
    w = np.eye(WIDTH) + 0.3 * generator.normal(size=(WIDTH, WIDTH))
    beta = generator.uniform(0.05, 0.3, size=CENTERS)
    distance = cdist(x, t, metric="mahalanobis", VI=w.T @ w)
    laplacian = np.exp(-beta * distance)
    euclidean = rbf_kernel(x, t, gamma=0.1)
    factored = rbf_kernel(x @ w.T, t @ w.T, gamma=0.1)
    each = np.concatenate([rbf_kernel(x, t[i : i + 1], gamma=beta[i]) for i in range(CENTERS)], axis=1)
    return {
        "x": x,
        "t": t,
        "c": c,
        "w": w,
        "beta": beta,
        "distance": distance,
        "attention_euclidean": euclidean @ c / euclidean.sum(axis=1, keepdims=True),
        "attention_factored": factored @ c / factored.sum(axis=1, keepdims=True),
        "attention_laplacian": np.exp(-0.1 * distance) @ c / np.exp(-0.1 * distance).sum(axis=1, keepdims=True),
        "feedforward": each @ c,
        "feedforward_normalised": each @ c / each.sum(axis=1, keepdims=True),
        "feedforward_laplacian": laplacian @ c,
    }
