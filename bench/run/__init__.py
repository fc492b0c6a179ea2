"""A run from its first case to its last: what there is to measure, in which order, for how long."""
