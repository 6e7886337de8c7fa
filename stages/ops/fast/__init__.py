"""Fast implementations of operators in C++ or in another precision.

They are not part of run keys, because tests compare each with its reference.  Each has a slower fallback.
"""
