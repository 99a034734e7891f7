"""Rotary embedding parameters, in the old (`rope_theta`, `rope_scaling`) and new spelling."""

from __future__ import annotations

from typing import Any, cast

from pyvlm.models.config import RopeConfig, RopeType
from pyvlm.models.fields import Fields, invalid, unsupported

_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


def parse_rope(fields: Fields, max_positions: int, head_dim: int) -> RopeConfig:
    """Reads the rope fields of one decoder config object."""
    scaling = _scaling(fields)
    theta = fields.number("rope_theta", 10000.0)
    fields.require("partial_rotary_factor", (1.0, 1))
    if scaling is None:
        return RopeConfig(theta=theta, max_position_embeddings=max_positions)
    theta = scaling.number("rope_theta", theta)
    scaling.require("partial_rotary_factor", (1.0, 1))
    kind = scaling.string("rope_type", scaling.string("type", "default"))
    if kind not in _TYPES:
        raise unsupported(scaling.where, "rope_type", kind, f"supported: {', '.join(_TYPES)}")
    original = _original(fields, scaling, kind, max_positions)
    rope = RopeConfig(
        theta=theta,
        type=cast(RopeType, kind),
        factor=_factor(scaling, kind, max_positions, original),
        max_position_embeddings=max_positions,
        original_max_position_embeddings=original,
        **_llama3(scaling, kind),
        **_yarn(scaling, kind),
        **_longrope(scaling, kind, head_dim),
    )
    scaling.finish()
    return rope


def _scaling(fields: Fields) -> Fields | None:
    """`rope_parameters` (transformers 5) or `rope_scaling` (before)."""
    old, new = fields.get("rope_scaling"), fields.get("rope_parameters")
    if old and new and old != new:
        raise invalid(fields.where, "rope_scaling", old, "equal to rope_parameters")
    if new:
        return fields.child("rope_parameters")
    return fields.child("rope_scaling") if old else None


def _factor(scaling: Fields, kind: str, max_positions: int, original: int | None) -> float:
    if kind == "default":
        scaling.require("factor", (1.0, 1))
        return 1.0
    if kind == "longrope":
        return scaling.number("factor", max_positions / (original or max_positions))
    return scaling.number("factor")


def _original(fields: Fields, scaling: Fields, kind: str, max_positions: int) -> int | None:
    name = "original_max_position_embeddings"
    outer = fields.get(name)
    if kind in ("default", "linear", "dynamic"):
        scaling.ignore((name,))
        return None
    fallback = outer if isinstance(outer, int) else max_positions
    return scaling.integer(name, fallback)


def _llama3(scaling: Fields, kind: str) -> dict[str, Any]:
    if kind != "llama3":
        return {}
    names = ("low_freq_factor", "high_freq_factor")
    values = {name: scaling.number(name) for name in names}
    if values["high_freq_factor"] <= values["low_freq_factor"]:
        value = values["high_freq_factor"]
        raise invalid(scaling.where, "high_freq_factor", value, "above low_freq_factor")
    return values


def _yarn(scaling: Fields, kind: str) -> dict[str, Any]:
    if kind != "yarn":
        return {}
    return {
        "beta_fast": scaling.number("beta_fast", 32.0),
        "beta_slow": scaling.number("beta_slow", 1.0),
        "attention_factor": scaling.optional_number("attention_factor"),
        "mscale": scaling.optional_number("mscale"),
        "mscale_all_dim": scaling.optional_number("mscale_all_dim"),
        "truncate": scaling.boolean("truncate", True),
    }


def _longrope(scaling: Fields, kind: str, head_dim: int) -> dict[str, Any]:
    """Short and long factors: which set holds depends on the length, see `max_capacity`."""
    if kind != "longrope":
        return {}
    return {
        "short_factor": _factors(scaling, "short_factor", head_dim // 2),
        "long_factor": _factors(scaling, "long_factor", head_dim // 2),
        "attention_factor": scaling.optional_number("attention_factor"),
    }


def _factors(scaling: Fields, name: str, count: int) -> tuple[float, ...]:
    value = scaling.get(name)
    expected = f"a list of {count} positive numbers"
    if not isinstance(value, list) or len(value) != count:
        raise invalid(scaling.where, name, value, expected)
    if not all(isinstance(v, (int, float)) and v > 0 for v in value):
        raise invalid(scaling.where, name, value, expected)
    return tuple(float(v) for v in value)
