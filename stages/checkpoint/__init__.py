"""Checkpoints: weights as safetensors whose header carries the input contract.  Nothing here reads a pickle."""
