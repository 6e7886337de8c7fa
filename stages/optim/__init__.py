"""Optimisers, implemented as their papers print them."""
