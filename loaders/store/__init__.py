"""Stores that are read by address: range requests, counted and retried."""
