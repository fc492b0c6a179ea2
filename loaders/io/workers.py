"""Threads that start together and are gone together."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Workers(ABC):
    """N threads that each run `_work` once. As a context manager: leaving it closes it, so that
    nothing of theirs runs into the next measurement."""

    def __init__(self, name: str, threads: int) -> None:
        """Starts nothing yet."""
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True)
            for number in range(max(threads, 1))
        ]

    @abstractmethod
    def _work(self) -> None:
        """What each thread does. Raises nothing: nobody would see it."""

    @abstractmethod
    def _stop(self) -> None:
        """Lets the threads end soon. Called once or more, from another thread."""

    def close(self) -> None:
        """Stops and joins the threads; who extends it frees what they used. Once more, it does
        nothing."""
        self._stop()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        started = 0
        try:
            for thread in self._threads:
                thread.start()
                started += 1
        except RuntimeError:  # the host allows no more threads: don't leave the others behind
            self._threads = self._threads[:started]
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
