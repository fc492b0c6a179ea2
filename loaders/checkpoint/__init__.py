"""What is on the disk, before anything is timed: a checkpoint's manifest and its faults."""
