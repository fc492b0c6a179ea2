"""Reading files into memory: page-aligned buffers, buffered and direct reads, reader threads.

Loaders are built from these parts, and so are the ceilings that they are measured against.
"""
