"""The worker of picture_corpora: file names on standard input, an outcome of each comes out."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from pyvlm.errors import PyvlmError
from pyvlm.media.decode import admit_images
from pyvlm.media.policy import DEFAULT_FORMATS, OPTIONAL_FORMATS, MediaPolicy
from pyvlm.media.preprocess import preprocess_image
from pyvlm.media.settings import load_transform
from pyvlm.media.transform import ImageTransform, transform_from_config
from pyvlm.models.parse import parse_config, read_config

BEGIN = "begin\n"
TYPED = ("image_decode_failed", "media_policy_violation")
TIMEOUT_S = 60  # of one file; the alarm ends the process
TINY = Path(__file__).parents[1] / "pyvlm" / "assets" / "tiny"
SMOLVLM = {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}, "resample": 1}


@dataclass(frozen=True)
class Outcome:
    name: str  # picture, an error code, or what must not happen
    detail: str
    peak_bytes: int  # beyond what the process had before
    is_fault: bool = False


def parse_outcome(line: str) -> Outcome:
    return Outcome(**json.loads(line))


def transforms() -> list[ImageTransform]:
    vision = parse_config(read_config(TINY)).vision
    assert vision is not None
    tiny = load_transform(lambda name: json.loads((TINY / name).read_text()), vision)
    return [tiny, transform_from_config(SMOLVLM, image_size=512, patch_size=16)]


def outcome_of(data: bytes, transforms: list[ImageTransform]) -> Outcome:
    policy = MediaPolicy(allowed_formats=DEFAULT_FORMATS + OPTIONAL_FORMATS)
    _reset_peak()
    before = _peak()
    try:
        (header,) = admit_images([data], policy)
        for transform in transforms:
            preprocess_image(data, header, transform)
    except PyvlmError as error:
        reason = reason_of(error.code, error.message)
        return Outcome(error.code, reason, _peak() - before, error.code not in TYPED)
    except BaseException as error:
        return Outcome("UNTYPED", type(error).__name__, _peak() - before, is_fault=True)
    return Outcome("picture", header.format, _peak() - before)


def reason_of(code: str, message: str) -> str:
    """The same for all files that fail alike."""
    reason = message.removeprefix("image 0: ")
    return reason.split(" is ")[0] if code == "media_policy_violation" else reason


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    status = Path("/proc/self/status").read_text().split()
    return int(status[status.index("VmHWM:") + 1]) * 1024


def main() -> None:
    names = sys.stdin.read().splitlines()
    made = transforms()
    for name in names:
        data = Path(name).read_bytes()
        sys.stdout.write(BEGIN)
        sys.stdout.flush()
        signal.alarm(TIMEOUT_S)
        outcome = outcome_of(data, made)
        signal.alarm(0)
        print(json.dumps(asdict(outcome)), flush=True)


if __name__ == "__main__":
    main()
