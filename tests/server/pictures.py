"""Pictures that the embedded model knows, as bytes and as URLs."""

from __future__ import annotations

import base64
import io
from functools import cache
from typing import Any

from PIL import Image, ImageDraw


@cache
def picture(colour: str = "red", form: str = "PNG", size: int = 192) -> bytes:
    """Blue is a square, any other colour a circle."""
    image = Image.new("RGB", (size, size), "white")
    draw = ImageDraw.Draw(image)
    shape = draw.rectangle if colour == "blue" else draw.ellipse
    low, high = 40 * size // 192, 150 * size // 192
    shape((low, low, high, high), fill=colour)
    out = io.BytesIO()
    image.save(out, form)
    return out.getvalue()


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def image_part(colour: str = "red") -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(picture(colour))}}


def text_part(text: str = "What colour is the shape?") -> dict[str, Any]:
    return {"type": "text", "text": text}
