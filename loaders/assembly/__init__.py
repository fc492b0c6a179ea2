"""Checkpoint -> one rank's parameters on a device: as engines do it, by stages, and at once."""
