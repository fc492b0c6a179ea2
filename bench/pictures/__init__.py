"""A run's pictures: values that the summary computed -> SVG text, by matplotlib. Pure functions."""
