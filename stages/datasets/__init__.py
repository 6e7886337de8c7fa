"""Data sets: where the official files come from, how they are read, and the packed form that training reads."""
