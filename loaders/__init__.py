"""How bytes become tensors. Knows nothing of benches or pytest."""
