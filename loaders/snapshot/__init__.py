"""Snapshots: one rank's parameters as an engine holds them, in a file that is read straight back.

`format` says what such a file is; `state` what goes into it, `fill` makes it, `write` writes it,
`digests` proves it.
"""
