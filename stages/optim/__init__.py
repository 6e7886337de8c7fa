"""Optimisers as their papers write them."""
