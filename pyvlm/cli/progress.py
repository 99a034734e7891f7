"""Build progress on a terminal: one line that is rewritten; elsewhere a line per stage."""

from __future__ import annotations

from typing import TextIO

_TEXT = {
    "hash": "reading the checkpoint",
    "wait": "another process compiles this model, waiting",
    "compile": "compiling",
    "weights": "packing weights",
}


class ConsoleProgress:
    """Pass an instance as `progress` to `prepare_bundle`. Call `close` before other output."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_tty = stream.isatty()
        self._stage = ""
        self._width = 0

    def __call__(self, stage: str, done: int, total: int, seconds: float) -> None:
        if stage == "ready":
            self.close()
            self._stream.write(f"compiled in {seconds:.1f} s\n")
        elif self._is_tty:
            self._rewrite(_line(stage, done, total, seconds))
        elif stage != self._stage and stage != "hash":
            self._stream.write(f"{_TEXT.get(stage, stage)} ...\n")
        self._stage = stage
        self._stream.flush()

    def close(self) -> None:
        """Clears the line."""
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0

    def _rewrite(self, line: str) -> None:
        self._stream.write("\r" + line.ljust(self._width))
        self._width = len(line)


def _line(stage: str, done: int, total: int, seconds: float) -> str:
    text = _TEXT.get(stage, stage)
    if total > 1:
        text += f" {100 * done // total:3d} %"
    return f"{text}, {seconds:.1f} s" if seconds else text
