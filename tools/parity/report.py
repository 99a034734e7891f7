"""Tables of docs/parity.md: each command writes its own section and leaves the others alone."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "parity.md"
_PACKAGES = ("torch", "transformers", "iree-base-compiler", "numpy")


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [_line(header), _line(["---"] * len(header))]
    return "\n".join([*lines, *(_line([_cell(c) for c in row]) for row in rows)]) + "\n"


def write_section(name: str, body: str, page: Path = PAGE) -> None:
    """Replaces what stands between the markers of `name`; the page must have them."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    text = page.read_text(encoding="utf-8")
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"{page} has no section {name}")
    head, rest = text.split(begin)
    tail = rest.split(end)[1]
    page.write_text(f"{head}{begin}\n{body.strip()}\n{end}{tail}", encoding="utf-8")


def versions(packages: Sequence[str] = _PACKAGES) -> str:
    """What the numbers were made with."""
    found = [f"{name} {metadata.version(name)}" for name in packages]
    return f"Made with {', '.join([*found, pillow()])} on {platform.machine()}."


def pillow() -> str:
    """Which of the two packages fills the PIL folder, and its version."""
    import PIL

    kind = "pillow-simd" if ".post" in PIL.__version__ else "pillow"
    return f"{kind} {PIL.__version__}"


def _line(cells: Sequence[object]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2e}" if value else "0"
    return str(value)
