"""Drawing scenes with PIL, and the picture processing of the model (resize to one square tile)."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import math
import random
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tools.train_tiny.palette import Background
from tools.train_tiny.scene import Obj, Scene

LONGEST_EDGE = 384
TILE = 96
FONT_PACKAGES = [
    "matplotlib",
    "font_roboto",
    "font_source_serif_pro",
    "font_hanken_grotesk",
    "font_manrope",
]
FONT_FOLDERS = ["/usr/share/fonts/truetype/dejavu"]
SKIPPED_FONTS = (
    "Thin",
    "ExtraLight",
    "STIX",
    "cmex",
    "cmsy",
    "cmmi",
    "Variable",
    "cmb",
    "cmr",
    "cmss",
    "cmtt",
    "Display",
)


@functools.cache
def font_paths() -> tuple[str, ...]:
    """Fonts found on this machine, sorted by file name; "" stands for Pillow's own."""
    folders = [Path(folder) for folder in FONT_FOLDERS]
    for name in FONT_PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            folders.append(Path(spec.origin).parent)
    found: dict[str, str] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*.ttf")):
            if not any(word in path.name for word in SKIPPED_FONTS):
                found.setdefault(path.name, str(path))
    return ("", *(found[name] for name in sorted(found)))


@functools.lru_cache(maxsize=1536)
def load_font(index: int, size: int) -> ImageFont.FreeTypeFont:
    """A font of about `size` pixels; every index is valid."""
    paths = font_paths()
    path = paths[index % len(paths)]
    return ImageFont.truetype(path, size) if path else ImageFont.load_default(size)


def font_size(pixels: float) -> int:
    """The next smaller size of a coarse scale, so that loaded fonts are used again."""
    size = max(8, int(pixels))
    step = 1 if size < 16 else 2 if size < 32 else 6
    return size // step * step


def polygon(obj: Obj) -> list[tuple[float, float]]:
    """Corners of a square, rectangle, triangle or star, rotated, in pixels."""
    w, h = obj.half_w, obj.half_h
    if obj.kind == "square":
        side = w * 0.86
        points = [(-side, -side), (side, -side), (side, side), (-side, side)]
    elif obj.kind == "rectangle":
        points = [(-w, -h), (w, -h), (w, h), (-w, h)]
    elif obj.kind == "triangle":
        points = [(0.0, -h), (0.9 * w, 0.72 * h), (-0.9 * w, 0.72 * h)]
    else:
        inner = 0.382 + 0.1 * ((int(obj.cx * 7 + obj.cy * 3) % 3) / 2)
        points = [
            (
                (w if i % 2 == 0 else w * inner) * math.sin(i * math.pi / 5),
                -(h if i % 2 == 0 else h * inner) * math.cos(i * math.pi / 5),
            )
            for i in range(10)
        ]
    cos, sin = math.cos(math.radians(obj.angle)), math.sin(math.radians(obj.angle))
    return [(obj.cx + x * cos - y * sin, obj.cy + x * sin + y * cos) for x, y in points]


def draw_background(background: Background, width: int, height: int, seed: int) -> Image.Image:
    """Plain, gradient or noisy background, RGB."""
    if background.rgb == background.rgb_end and not background.noise:
        return Image.new("RGB", (width, height), background.rgb)
    length = height if background.vertical else width
    ramp = np.linspace(background.rgb, background.rgb_end, length)
    ramp = ramp[:, None, :] if background.vertical else ramp[None, :, :]
    pixels = np.broadcast_to(ramp, (height, width, 3))
    if background.noise:
        rng = np.random.default_rng(seed)
        pixels = pixels + rng.normal(0, background.noise, (height, width, 1))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def draw_shape(draw: ImageDraw.ImageDraw, obj: Obj) -> None:
    """Fill one shape; an outline, if any, is black or gray."""
    outline = ((0, 0, 0) if sum(obj.rgb) > 200 else (128, 128, 128)) if obj.outline else None
    if obj.kind == "circle":
        box = (obj.cx - obj.half_w, obj.cy - obj.half_h, obj.cx + obj.half_w, obj.cy + obj.half_h)
        draw.ellipse(box, fill=obj.rgb, outline=outline)
    else:
        draw.polygon(polygon(obj), fill=obj.rgb, outline=outline)


def number_boxes(scene: Scene, obj: Obj) -> tuple[ImageFont.FreeTypeFont, list[tuple[float, ...]]]:
    """The font that gives the wanted height, and one (left, top, right, bottom) box per digit."""
    index = scene.font + (int(obj.cx) if scene.type == "mosaic" else 0)
    probe = load_font(index, 100)
    left, top, right, bottom = probe.getbbox(obj.text)
    scale = min(2 * obj.half_h / (bottom - top), 0.94 * scene.width / (right - left))
    font = load_font(index, font_size(100 * scale))
    left, top, right, bottom = font.getbbox(obj.text)
    x0 = min(max(obj.cx - (right - left) / 2, 1), scene.width - (right - left) - 1)
    y0 = min(max(obj.cy - (bottom - top) / 2, 1), scene.height - (bottom - top) - 1)
    cut = font.getlength(obj.text[0]) if len(obj.text) > 1 else right
    edges = [left, cut, right] if len(obj.text) > 1 else [left, right]
    boxes = [
        (x0 + a - left, y0, x0 + b - left, y0 + bottom - top) for a, b in itertools.pairwise(edges)
    ]
    return font, boxes


def draw_number(image: Image.Image, scene: Scene, obj: Obj) -> Image.Image:
    """Write the number into the picture."""
    font, boxes = number_boxes(scene, obj)
    left, top = font.getbbox(obj.text)[:2]
    origin = (boxes[0][0] - left, boxes[0][1] - top)
    if not obj.angle:
        ImageDraw.Draw(image).text(origin, obj.text, fill=obj.rgb, font=font)
        return image
    mask = Image.new("L", image.size, 0)
    ImageDraw.Draw(mask).text(origin, obj.text, fill=255, font=font)
    centre = ((boxes[0][0] + boxes[-1][2]) / 2, (boxes[0][1] + boxes[0][3]) / 2)
    mask = mask.rotate(obj.angle, Image.Resampling.BILINEAR, center=centre)
    image.paste(obj.rgb, mask=mask)
    return image


def draw_other(image: Image.Image, scene: Scene, obj: Obj) -> Image.Image:
    """Pictures that hold no shape and no number."""
    draw, rng, r = ImageDraw.Draw(image), random.Random(scene.seed), obj.half_w
    stroke = max(2, int(r * rng.uniform(0.1, 0.4)))
    if obj.kind == "scribble":
        points = [(rng.uniform(0, scene.width), rng.uniform(0, scene.height)) for _ in range(9)]
        draw.line(points, fill=obj.rgb, width=max(1, stroke // 3))
    elif obj.kind == "cross":
        draw.line((obj.cx - r, obj.cy, obj.cx + r, obj.cy), fill=obj.rgb, width=stroke)
        draw.line((obj.cx, obj.cy - r, obj.cx, obj.cy + r), fill=obj.rgb, width=stroke)
    elif obj.kind == "letter":
        font = load_font(scene.font, max(12, int(1.6 * r)))
        draw.text((obj.cx, obj.cy), obj.text, fill=obj.rgb, font=font, anchor="mm")
    elif obj.kind == "heart":
        steps = [i * math.pi / 20 for i in range(40)]
        draw.polygon(
            [
                (
                    obj.cx + r * math.sin(t) ** 3,
                    obj.cy
                    - r
                    / 16
                    * (
                        13 * math.cos(t)
                        - 5 * math.cos(2 * t)
                        - 2 * math.cos(3 * t)
                        - math.cos(4 * t)
                    ),
                )
                for t in steps
            ],
            fill=obj.rgb,
        )
    elif obj.kind == "noise":
        noise = np.random.default_rng(scene.seed).integers(0, 256, (12, 12, 3), dtype=np.uint8)
        return Image.fromarray(noise).resize(image.size, Image.Resampling.BICUBIC)
    elif obj.kind == "stripes":
        for x in range(0, scene.width, 3 * stroke):
            draw.rectangle((x, 0, x + stroke, scene.height), fill=obj.rgb)
    return image


def render(scene: Scene) -> Image.Image:
    """The picture of a scene: RGB, `scene.width` x `scene.height`."""
    image = draw_background(scene.background, scene.width, scene.height, scene.seed)
    for obj in scene.objects:
        if obj.kind == "number":
            image = draw_number(image, scene, obj)
        elif scene.type == "other":
            image = draw_other(image, scene, obj)
        else:
            draw_shape(ImageDraw.Draw(image), obj)
    return image


def tile_size(width: int, height: int) -> tuple[int, int]:
    """Size after the first resize: the longest edge becomes 384, the other one even."""
    if width >= height:
        short = int(LONGEST_EDGE / (width / height))
        return LONGEST_EDGE, max(short + short % 2, 1)
    short = int(LONGEST_EDGE * (width / height))
    return max(short + short % 2, 1), LONGEST_EDGE


def to_tile(image: Image.Image, exact: bool = True) -> np.ndarray:
    """What the model sees: uint8 [96, 96, 3], resized in two steps as the image processor does.

    Not `exact` skips the first step: nearly the same picture in a fifth of the time.
    """
    lanczos = Image.Resampling.LANCZOS
    if exact:
        image = image.resize(tile_size(*image.size), lanczos)
    return np.asarray(image.resize((TILE, TILE), lanczos))
