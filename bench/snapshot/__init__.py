"""Making snapshots of the assembled state, and telling whether one is what it should be."""
