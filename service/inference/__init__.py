"""Turns uploaded files into predictions: decoding, batching, processes that run models."""
