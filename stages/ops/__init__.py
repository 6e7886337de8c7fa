"""Operators: equation, reference, public function, module."""
