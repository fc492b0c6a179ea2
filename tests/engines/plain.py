"""Starts, serves, and ends when it's interrupted."""

from say import serve, start

start()
serve()
