"""Data sets: origin of the official files, how they are read, and the packed form that training reads."""
