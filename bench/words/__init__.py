"""What the figures of a run say, in sentences and tables. Reads records only."""
