"""What each of the 8 x 8 patches shows: targets of the auxiliary heads."""

from __future__ import annotations

import numpy as np

from tools.train_tiny.palette import COLOURS
from tools.train_tiny.scene import SHAPES, Obj, Scene
from tools.train_tiny.shapes import number_boxes

SIDE = 8
KINDS = ["nothing", *SHAPES, *"0123456789", "other"]
COLOUR_NAMES = ["none", *COLOURS]


def object_boxes(scene: Scene, obj: Obj) -> list[tuple[str, tuple[float, ...]]]:
    """(class name, box in pixels) of an object; one for each digit of a number."""
    if obj.kind == "number":
        boxes = number_boxes(scene, obj)[1]
        return list(zip(obj.text, boxes, strict=True))
    shrink = {"star": 0.75, "triangle": 0.8, "circle": 0.85}.get(obj.kind, 0.9)
    w, h = obj.half_w * shrink, obj.half_h * shrink
    kind = obj.kind if obj.kind in SHAPES else "other"
    return [(kind, (obj.cx - w, obj.cy - h, obj.cx + w, obj.cy + h))]


def patch_labels(scene: Scene) -> np.ndarray:
    """int64 [3, 64]: class, colour, whether the centre of something lies in the patch."""
    labels = np.zeros((3, SIDE, SIDE), np.int64)
    for obj in scene.objects:
        if obj.kind in ("blank", "noise", "stripes", "scribble"):
            continue
        colour = COLOUR_NAMES.index(obj.colour)
        for name, (left, top, right, bottom) in object_boxes(scene, obj):
            x0, x1 = (v / scene.width * SIDE for v in (left, right))
            y0, y1 = (v / scene.height * SIDE for v in (top, bottom))
            column, row = (
                int(min(max((a + b) / 2, 0), SIDE - 1e-3)) for a, b in ((x0, x1), (y0, y1))
            )
            xs = slice(max(int(np.ceil(x0 - 0.5)), 0), max(int(np.floor(x1 + 0.5)), 0))
            ys = slice(max(int(np.ceil(y0 - 0.5)), 0), max(int(np.floor(y1 + 0.5)), 0))
            for spot in ((ys, xs), (row, column)):
                labels[0][spot] = KINDS.index(name)
                labels[1][spot] = colour
            labels[2, row, column] = 1
    return labels.reshape(3, -1)
