"""What `coldload plan` says: bytes for each rank, the KV pool, per card or total."""
