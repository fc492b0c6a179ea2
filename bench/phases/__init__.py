"""What is measured besides reading a storage: each phase is one module with one `Phase` value, and
a row in bench.phases.table."""
