"""Data sets: origin of the official files, how they are read, and the packed form that training reads.

Functions here raise `DatasetError` if files are missing, damaged or not the declared ones.
"""
