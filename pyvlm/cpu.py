"""CPU features: what this machine has, and what a program was compiled to use."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

# LLVM's name -> the kernel's in /proc/cpuinfo, for every feature that changes which instructions
# the compiler emits for our code.
_FLAGS = {
    "sse3": "pni",
    "ssse3": "ssse3",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "sse4a": "sse4a",
    "popcnt": "popcnt",
    "cx16": "cx16",
    "sahf": "lahf_lm",
    "movbe": "movbe",
    "lzcnt": "abm",
    "bmi": "bmi1",
    "bmi2": "bmi2",
    "adx": "adx",
    "aes": "aes",
    "pclmul": "pclmulqdq",
    "sha": "sha_ni",
    "gfni": "gfni",
    "vaes": "vaes",
    "vpclmulqdq": "vpclmulqdq",
    "f16c": "f16c",
    "fma": "fma",
    "fma4": "fma4",
    "xop": "xop",
    "tbm": "tbm",
    "avx": "avx",
    "avx2": "avx2",
    "avxvnni": "avx_vnni",
    "avx512f": "avx512f",
    "avx512cd": "avx512cd",
    "avx512bw": "avx512bw",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512ifma": "avx512ifma",
    "avx512vbmi": "avx512vbmi",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512vnni": "avx512_vnni",
    "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "avx512vp2intersect": "avx512_vp2intersect",
    "amx-tile": "amx_tile",
    "amx-int8": "amx_int8",
    "amx-bf16": "amx_bf16",
    "avxifma": "avx_ifma",
    "avxneconvert": "avx_ne_convert",
    "avxvnniint8": "avx_vnni_int8",
    "avxvnniint16": "avx_vnni_int16",
}
# Features that no generated code needs: every x86-64 CPU has them, or they are instructions for
# operating systems, enclaves, random numbers, cache control and threads. Whatever is in neither
# table counts as needed.
_INERT = frozenset(
    [
        "64bit",
        "cmov",
        "crc32",
        "cx8",
        "fxsr",
        "mmx",
        "sse",
        "sse2",
        "x87",
        "cldemote",
        "clflushopt",
        "clwb",
        "clzero",
        "enqcmd",
        "fsgsbase",
        "hreset",
        "invpcid",
        "kl",
        "lwp",
        "movdir64b",
        "movdiri",
        "mwaitx",
        "pconfig",
        "pku",
        "prefetchi",
        "prfchw",
        "ptwrite",
        "rdpid",
        "rdpru",
        "rdrnd",
        "rdseed",
        "rtm",
        "serialize",
        "sgx",
        "shstk",
        "tsxldtrk",
        "uintr",
        "waitpkg",
        "wbnoinvd",
        "widekl",
        "xsave",
        "xsavec",
        "xsaveopt",
        "xsaves",
    ]
)


def host_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, ...]:
    """Features of this machine under LLVM's names, such as `+avx2`, sorted."""
    flags = _host_flags(cpuinfo)
    return tuple(sorted(f"+{name}" for name, flag in _FLAGS.items() if flag in flags))


def relevant_features(features: Iterable[str]) -> tuple[str, ...]:
    """Those of a compiler's list that decide whether its code runs on a machine."""
    names = {f.removeprefix("+") for f in features if not f.startswith("-")}
    return tuple(sorted(f"+{name}" for name in names - _INERT))


def missing_features(
    needed: Iterable[str], cpuinfo: Path = Path("/proc/cpuinfo")
) -> tuple[str, ...]:
    """What a program needs and this machine lacks: running it would end in SIGILL."""
    flags = _host_flags(cpuinfo)
    return tuple(sorted({f for f in needed if _flag(f.removeprefix("+")) not in flags}))


def _flag(name: str) -> str:
    """The kernel's name; of a feature newer than the table the most likely one."""
    return _FLAGS.get(name, name.replace("-", "_").replace(".", "_"))


def _host_flags(cpuinfo: Path) -> frozenset[str]:
    for line in cpuinfo.read_text(errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "flags":
            return frozenset(value.split())
    return frozenset()
