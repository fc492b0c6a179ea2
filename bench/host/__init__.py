"""Facts of the host, read from /proc and /sys alone: never a guess, null where nothing is known."""
