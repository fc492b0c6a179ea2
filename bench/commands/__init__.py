"""The sub-commands of `coldload`, one module each."""
