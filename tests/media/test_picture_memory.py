"""Peak memory of one picture, in a process of its own: bytes for each pixel, by kind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WIDTH, HEIGHT = 3200, 2800  # what does not depend on the size is a tenth of it

# The library keeps colour at 4 bytes a pixel, so a picture costs 4 and its composition 4 more. A
# progressive JPEG keeps 2 bytes for each coefficient, a WebP is decoded onto two canvases.
LIMITS = {
    "PNG RGBA": 8, "PNG RGBA turned": 8, "PNG RGB": 4, "PNG P alpha": 5, "PNG I;16": 6,
    "JPEG": 4, "JPEG progressive": 8, "JPEG turned": 8, "GIF": 5, "TIFF F": 8, "TIFF LAB": 8,
    "BMP": 4, "WEBP": 16,
}  # fmt: skip

QUICK = ("PNG RGBA", "PNG RGBA turned", "JPEG progressive")
KINDS = [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in LIMITS]

PROGRAM = """
import resource, sys
from pathlib import Path
from pyvlm.media.decode import admit_images, decode_image
from pyvlm.media.policy import DEFAULT_FORMATS, MediaPolicy

def peak():  # of this process alone: ru_maxrss begins with its parent's
    status = Path("/proc/self/status").read_text().split()
    return int(status[status.index("VmHWM:") + 1]) * 1024

limits = dict(max_image_bytes=1 << 30, max_request_image_bytes=1 << 30)
policy = MediaPolicy(allowed_formats=(*DEFAULT_FORMATS, "TIFF"), **limits)
small, data = (Path(name).read_bytes() for name in sys.argv[1:])
decode_image(small, admit_images([small], policy)[0])
before = peak()
image = decode_image(data, admit_images([data], policy)[0])
print(peak() - before, *image.size)
"""

MAKE = """
import sys
from PIL import Image
kind, width, height, path = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
name, _, mode = kind.partition(" ")
mode, _, more = (mode or "RGB").partition(" ")
turned = "turned" in (mode, more)
source = {"progressive": "RGB", "turned": "RGB"}.get(mode, mode)
image = Image.radial_gradient("L").resize((width, height))
if source == "LAB":  # not every library can convert to it
    image = Image.merge("LAB", [image] * 3)
elif source != "I;16":
    image = image.convert(source)
options = {"compress_level": 1} if name == "PNG" else {"lossless": True} if name == "WEBP" else {}
if mode == "I;16":
    import numpy as np
    image = Image.fromarray(np.asarray(image).astype(np.uint16) * 257)
if mode == "P":
    options["transparency"] = bytes(range(256))
if mode == "progressive":
    options["progressive"] = True
if turned:
    exif = Image.Exif()
    exif[274] = 6
    options["exif"] = exif
image.save(path, name, **options)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_peak_memory(kind: str, tmp_path: Path) -> None:
    paths = []
    for width, height in ((50, 40), (WIDTH, HEIGHT)):
        paths.append(str(tmp_path / str(width)))
        make = [sys.executable, "-c", MAKE, kind, str(width), str(height), paths[-1]]
        subprocess.run(make, check=True, timeout=100)
    run = [sys.executable, "-c", PROGRAM, *paths]
    result = subprocess.run(run, check=True, timeout=100, capture_output=True, text=True)
    peak, *size = map(int, result.stdout.split())
    assert sorted(size) == [HEIGHT, WIDTH]
    file = Path(paths[-1]).stat().st_size
    # The file itself is held up to three times: as it came, cut down, and in the decoder.
    bound = LIMITS[kind] * WIDTH * HEIGHT * 1.1 + 3 * file + (8 << 20)
    assert peak < bound, f"{peak / (WIDTH * HEIGHT):.1f} bytes a pixel, file {file}"
