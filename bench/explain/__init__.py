"""From an inference engine's start-up log to a cold-start record, and from the record to what to
do: `lines` and `prefix` read, `parse` folds, `record` says what was found, the others judge it."""
