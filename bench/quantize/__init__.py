"""Writes a quantised checkpoint that real software opens, from one that isn't quantised."""
