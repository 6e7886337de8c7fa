"""From uploaded files to predictions: decoding, batching, the processes that run models."""
