"""From 16-bit weights to 8-bit ones: the rules, what they do by definition, and the fast way."""
