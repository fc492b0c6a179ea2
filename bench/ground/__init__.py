"""What lies ready before the first sample: storages, checkpoints, copies."""
