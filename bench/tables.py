"""From the records of a comparison to medians, ratios, a Markdown table and a plot."""

from __future__ import annotations

import importlib
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from bench.rows import ROWS, Row

OURS = "pyvlm"
Cells = dict[str, dict[str, dict[str, float]]]  # row, system


def cells(records: list[dict[str, Any]]) -> Cells:
    """Median and range over the rounds; `foreign` is the worst share of other processes."""
    values: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for record in records:
        for row, value in record["values"].items():
            values[row, record["system"]].append((value, record["foreign_percent"]))
    table: Cells = {row: {} for row in ROWS if any(row == key[0] for key in values)}
    for (row, system), seen in values.items():
        numbers = [value for value, _ in seen]
        table[row][system] = {
            "median": statistics.median(numbers),
            "low": min(numbers),
            "high": max(numbers),
            "rounds": len(numbers),
            "foreign_percent": max(foreign for _, foreign in seen),
        }
    return table


def best_peer(row: str, by_system: dict[str, dict[str, float]]) -> str | None:
    peers = [name for name in by_system if not name.startswith(OURS)]
    pick = max if ROWS[row].higher_is_better else min
    return pick(peers, key=lambda name: by_system[name]["median"]) if peers else None


def ratios(row: str, system: str, peer: str, records: list[dict[str, Any]]) -> list[float]:
    """Speed of `system` over that of `peer`, per round: above 1 the system is faster."""
    by_round: dict[int, dict[str, float]] = defaultdict(dict)
    for record in records:
        if row in record["values"]:
            by_round[record["round"]][record["system"]] = record["values"][row]
    pairs = [found for found in by_round.values() if system in found and peer in found]
    if ROWS[row].higher_is_better:
        return [pair[system] / pair[peer] for pair in pairs]
    return [pair[peer] / pair[system] for pair in pairs]


def markdown(records: list[dict[str, Any]]) -> str:
    table = cells(records)
    systems = sorted(
        {record["system"] for record in records}, key=lambda name: (OURS not in name, name)
    )
    ours = [name for name in systems if name.startswith(OURS)]
    head = ["work", *systems, *(f"{name} to the best other" for name in ours)]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row, by_system in table.items():
        texts = [f"{ROWS[row].title} ({ROWS[row].unit})"]
        texts += [_cell(by_system.get(system)) for system in systems]
        texts += [_ratio(row, name, by_system, records) for name in ours]
        lines.append("| " + " | ".join(texts) + " |")
    return "\n".join(lines) + "\n"


def _cell(cell: dict[str, float] | None) -> str:
    if cell is None:
        return "not measured"
    return f"{number(cell['median'])} ({number(cell['low'])}-{number(cell['high'])})"


def _ratio(
    row: str, system: str, by_system: dict[str, dict[str, float]], records: list[dict[str, Any]]
) -> str:
    peer = best_peer(row, by_system)
    if peer is None or system not in by_system:
        return "-"
    found = ratios(row, system, peer, records)
    if not found:
        return "-"
    middle = statistics.median(found)
    return f"{middle:.2f} ({min(found):.2f}-{max(found):.2f}) {peer}"


def number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def write_plot(records: list[dict[str, Any]], path: Path) -> None:
    """A panel a row, a bar a system, whiskers from the least to the greatest."""
    table = cells(records)
    if not table:
        return
    figure_type = importlib.import_module("matplotlib.figure").Figure
    columns = 3
    lines = -(-len(table) // columns)
    figure = figure_type(figsize=(5 * columns, 2.6 * lines), layout="constrained")
    for axis, (row, by_system) in zip(
        figure.subplots(lines, columns, squeeze=False).ravel(), table.items(), strict=False
    ):
        _bars(axis, ROWS[row], by_system)
    for axis in figure.axes[len(table) :]:
        axis.set_visible(False)
    figure.savefig(path, dpi=110)


def _bars(axis: Any, row: Row, by_system: dict[str, dict[str, float]]) -> None:
    names = sorted(by_system, key=lambda name: (OURS in name, name))
    medians = [by_system[name]["median"] for name in names]
    spread = [
        [by_system[name]["median"] - by_system[name]["low"] for name in names],
        [by_system[name]["high"] - by_system[name]["median"] for name in names],
    ]
    colours = ["tab:orange" if OURS in name else "tab:blue" for name in names]
    axis.barh(names, medians, xerr=spread, color=colours)
    better = "more" if row.higher_is_better else "less"
    axis.set_title(f"{row.title} ({row.unit}; {better} is better)", fontsize=8)
    axis.tick_params(labelsize=8)
