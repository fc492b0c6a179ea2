"""What of this system a loader must respect: mounts, memory limits, what is in the page cache."""
