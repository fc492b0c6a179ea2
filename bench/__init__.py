"""How loading is measured: cases, cache state, child processes, records, report."""
