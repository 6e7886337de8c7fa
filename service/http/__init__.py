"""What every request passes: limits, keys, errors, headers, formats, metrics."""
