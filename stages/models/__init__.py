"""Architectures that two or more papers use."""
