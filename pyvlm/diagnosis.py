"""What an installation consists of and whether its parts fit together. No check raises."""

from __future__ import annotations

import importlib
import os
import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from pyvlm.errors import PyvlmError

Status = Literal["ok", "warning", "broken"]
PILLOW_CURE = (
    "pip uninstall -y pillow pillow-simd, then install one of them: pip install pillow-simd "
    "(faster) or pip install pillow"
)


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    status: Status
    detail: str
    cure: str = ""


def diagnose() -> list[Finding]:
    checks: tuple[Callable[[], Finding], ...] = (
        check_platform,
        check_iree_packages,
        check_compiler,
        check_native_core,
        check_cpu,
        check_pillow,
        check_image_formats,
        check_cache,
        check_memory,
        check_embedded_model,
    )
    return [_guarded(check) for check in checks]


def _guarded(check: Callable[[], Finding]) -> Finding:
    name = check.__name__.removeprefix("check_").replace("_", " ")
    try:
        return check()
    except PyvlmError as error:
        return Finding(name, "broken", f"{error.message} [{error.code}]")
    except Exception as error:
        return Finding(name, "broken", f"the check itself failed: {error!r}")


def check_platform() -> Finding:
    system, machine = platform.system(), platform.machine()
    detail = f"{system} {machine}, Python {platform.python_version()}"
    if (system, machine) != ("Linux", "x86_64"):
        return Finding("platform", "broken", detail, "use Linux on x86-64")
    return Finding("platform", "ok", detail)


def installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def check_iree_packages() -> Finding:
    from pyvlm._runtime_library import REQUIRED_PACKAGES, VERSION

    found = {name: installed_version(name) for name in sorted(REQUIRED_PACKAGES)}
    detail = ", ".join(f"{name} {version or 'missing'}" for name, version in found.items())
    wrong = [name for name, version in found.items() if version != VERSION]
    if wrong:
        wanted = " ".join(f"{name}=={VERSION}" for name in wrong)
        return Finding("iree packages", "broken", detail, f"pip install {wanted}")
    return Finding("iree packages", "ok", detail)


def check_compiler() -> Finding:
    from pyvlm.compile import target_features

    features = target_features()
    return Finding("compiler", "ok", f"runs; targets this CPU with {len(features)} features")


def check_native_core() -> Finding:
    """The extension, the runtime library that it loads, and a device."""
    cure = "reinstall pyvlm and shortfin in this environment"
    try:
        core = importlib.import_module("pyvlm._core")
        info = core.library_info()
        core.Device("local-task", 1)
    except PyvlmError as error:
        return Finding("native core", "broken", f"{error.message} [{error.code}]", cure)
    except ImportError as error:
        return Finding("native core", "broken", f"it does not load: {error}", cure)
    detail = (
        f"IREE {info['version']}, drivers {' '.join(info['drivers'])}, kernels {info['kernels']}"
    )
    return Finding("native core", "ok", f"{detail}; device local-task works")


def check_cpu(features: Iterable[str] | None = None) -> Finding:
    from pyvlm.cpu import host_features

    has = set(host_features() if features is None else features)
    names = [f for f in ("avx2", "fma", "f16c", "avx512f", "avx512vnni") if f"+{f}" in has]
    fast = {"+avx2", "+fma", "+f16c"} <= has
    isa = "avx2" if fast and os.environ.get("PYVLM_ISA") != "scalar" else "scalar"
    detail = f"{os.cpu_count()} logical cores; {' '.join(names) or 'no vectors'}; kernels: {isa}"
    if isa == "avx2":
        return Finding("cpu", "ok", detail)
    cure = "unset PYVLM_ISA" if fast else "a CPU with AVX2, FMA and F16C is many times faster"
    return Finding("cpu", "warning", detail, cure)


def check_pillow() -> Finding:
    plain, simd = installed_version("pillow"), installed_version("pillow-simd")
    if plain and simd:
        detail = f"pillow {plain} and pillow-simd {simd} are installed over each other"
        return Finding("pillow", "broken", detail, PILLOW_CURE)
    try:
        import PIL
        from PIL import Image

        Image.new("RGB", (2, 2)).resize((1, 1)).load()
        loaded = PIL.__version__
    except ImportError as error:
        return Finding("pillow", "broken", f"it does not load: {error}", PILLOW_CURE)
    if loaded != (simd or plain):
        detail = f"PIL {loaded} is loaded, but {simd or plain or 'none'} is installed"
        return Finding("pillow", "broken", detail, PILLOW_CURE)
    if simd:
        return Finding("pillow", "ok", f"pillow-simd {simd}")
    return Finding("pillow", "ok", f"pillow {plain}; pillow-simd would resize five times faster")


def check_image_formats() -> Finding:
    from pyvlm.media.decode import optional_formats

    missing = [name for name in ("WEBP", "TIFF") if name not in optional_formats()]
    if not missing:
        return Finding("image formats", "ok", "PNG JPEG GIF BMP WEBP TIFF")
    return Finding(
        "image formats",
        "warning",
        f"the installed Pillow lacks {' and '.join(missing)}",
        "install libwebp-dev and libtiff-dev, then build pillow-simd again, or use pillow",
    )


def check_cache() -> Finding:
    from pyvlm.cache import ENVIRONMENT, Cache, default_root

    root = default_root()
    Cache(root).check()
    place = root
    while not place.exists():
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return Finding(
            "cache", "broken", f"{root} cannot be written", f"set {ENVIRONMENT} to a directory"
        )
    bundles = list((root / "bundles").glob("*/manifest.json"))
    size = sum(f.stat().st_size for f in root.rglob("*") if f.is_file() and not f.is_symlink())
    return Finding("cache", "ok", f"{root}: {len(bundles)} bundles, {size / 2**20:.1f} MiB")


def check_memory() -> Finding:
    from pyvlm.memory import available_bytes

    available = available_bytes() / 2**30
    if available < 1:
        cure = "close other programs; lower --max-num-seqs or --max-model-len"
        return Finding("memory", "warning", f"{available:.1f} GiB available", cure)
    return Finding("memory", "ok", f"{available:.1f} GiB available")


def check_embedded_model() -> Finding:
    folder = Path(__file__).parent / "assets" / "tiny"
    if (folder / "config.json").is_file() and (folder / "model.safetensors").is_file():
        return Finding("embedded model", "ok", "tiny")
    return Finding("embedded model", "broken", "tiny is missing", "reinstall pyvlm")
