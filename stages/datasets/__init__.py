"""Data sets: origin of the official files, how they are read, and the packed form that training reads.

Whatever reads, fetches or checks files raises `DatasetError` if they are missing, damaged or not the declared ones.
"""
