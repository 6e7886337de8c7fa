"""Operators of the papers: each has its equation, a reference, a fast function and a module."""
