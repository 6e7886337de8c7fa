"""Predictions from uploaded files: decoding, batching, and processes that run models."""
