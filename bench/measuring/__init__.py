"""How one sample is measured: the child, its clocks, its counters, the page cache, the ceilings."""
