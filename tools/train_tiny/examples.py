"""The example pictures of the repository, drawn anew.

python -m tools.train_tiny.examples --out examples
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from tools.train_tiny.palette import Background, Rgb
from tools.train_tiny.scene import Obj, Scene
from tools.train_tiny.shapes import render

WHITE = Background((255, 255, 255), (255, 255, 255), "white")
YELLOW = Background((255, 255, 0), (255, 255, 0), "yellow")
PALE = Background((225, 240, 255), (225, 240, 255))
RED, BLUE, GREEN, ORANGE, PURPLE = (
    (255, 0, 0),
    (0, 0, 255),
    (0, 128, 0),
    (255, 140, 0),
    (128, 0, 128),
)


@dataclass(frozen=True)
class Example:
    """A picture with one question and its right answer."""

    name: str
    question: str
    answer: str
    scene: Scene


def shape(kind: str, colour: str, rgb: Rgb, centre: tuple[float, float], radius: float) -> Obj:
    """An upright shape."""
    return Obj(kind, colour, rgb, *centre, radius, radius)


EXAMPLES = [
    Example(
        "red_circle.png",
        "What colour is the shape?",
        "red",
        Scene("single", 320, 240, WHITE, (shape("circle", "red", RED, (160, 120), 80),)),
    ),
    Example(
        "two_blue_triangles.png",
        "How many shapes are there?",
        "2",
        Scene(
            "group",
            320,
            240,
            WHITE,
            (
                shape("triangle", "blue", BLUE, (95, 125), 55),
                shape("triangle", "blue", BLUE, (225, 125), 55),
            ),
        ),
    ),
    Example(
        "number_42.png",
        "What number is it?",
        "42",
        Scene(
            "number",
            320,
            240,
            WHITE,
            (Obj("number", "black", (0, 0, 0), 160, 120, 100, 70, text="42"),),
        ),
    ),
    Example(
        "star_on_yellow.png",
        "What shape is it?",
        "star",
        Scene("single", 400, 300, YELLOW, (shape("star", "purple", PURPLE, (190, 155), 105),)),
    ),
    Example(
        "square_left_of_star.png",
        "What is left of the star?",
        "square",
        Scene(
            "pair",
            480,
            270,
            PALE,
            (
                shape("square", "green", GREEN, (120, 135), 62),
                shape("star", "orange", ORANGE, (350, 140), 66),
            ),
        ),
    ),
    Example(
        "circle_above_square.png",
        "What is above the square?",
        "circle",
        Scene(
            "pair",
            240,
            320,
            WHITE,
            (
                shape("circle", "blue", BLUE, (120, 85), 48),
                shape("square", "red", RED, (120, 230), 55),
            ),
        ),
    ),
]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    lines = ["# Example pictures", "", "| file | question | right answer |", "|---|---|---|"]
    for example in EXAMPLES:
        render(example.scene).save(out / example.name)
        lines.append(f"| `{example.name}` | {example.question} | {example.answer} |")
    lines += ["", "Drawn by `python -m tools.train_tiny.examples --out examples`."]
    (out / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
