"""Runs of one small network as one stacked, compiled model: a fast path of `stages.training.loop`."""
