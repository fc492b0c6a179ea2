"""The report that a person looks at: a run's records as one HTML page, or as Markdown. Pure
functions up to the text; the command writes it."""
