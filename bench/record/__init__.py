"""What a run writes down and what is computed from it: values and arithmetic."""
