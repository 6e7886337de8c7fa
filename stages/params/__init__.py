"""Reads params files, validates them and expands them into runs."""
