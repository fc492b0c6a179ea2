"""Disk to device, both stages at once: what a loader reaches that never lets either wait."""
