"""Watching an engine start: its output, stamped, and what its processes did meanwhile."""
