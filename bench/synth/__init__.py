"""Synthetic checkpoints: real shapes, scaled to a size, filled with seeded random numbers."""
