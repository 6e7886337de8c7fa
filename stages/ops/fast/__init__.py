"""Fast paths of operators: the same quantities in C++, in Triton, or in another precision.

Nothing here is part of a run key, because tests hold each path to its equation.  A fast path is never the only one.
"""
