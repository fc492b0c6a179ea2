"""From a checkpoint to a rank's quantised parameters as a device wants them: weights quantised
while loading, or read as they were quantised before. Both come to the same bytes."""
