"""`pyvlm doctor`: what was found, and what to do. Exit status 1 if something is broken."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from pyvlm.diagnosis import Finding, diagnose

if TYPE_CHECKING:
    _Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_MARK = {"ok": "ok     ", "warning": "warning", "broken": "BROKEN "}


def add_parser(subparsers: _Subparsers) -> None:
    parser = subparsers.add_parser("doctor", help="check this installation and say what to do")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    findings = diagnose()
    is_broken = any(finding.status == "broken" for finding in findings)
    if args.json:
        print(json.dumps({"ok": not is_broken, "checks": [asdict(f) for f in findings]}))
    else:
        print(as_text(findings))
    return 1 if is_broken else 0


def as_text(findings: Sequence[Finding]) -> str:
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{_MARK[finding.status]}  {finding.name.ljust(width)}  {finding.detail}")
        if finding.cure:
            lines.append(f"{' ' * (width + 11)}-> {finding.cure}")
    return "\n".join(lines)
