"""HTTP layer of every request: limits, keys, errors, headers, formats, metrics."""
