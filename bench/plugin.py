"""The pytest edge: options, the matrix of cases, the table in the end."""
