"""The way in and out of every request: limits, keys, errors, headers, formats, metrics."""
