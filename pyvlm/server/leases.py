"""Who holds what, as lines of the log: `kill -USR1` asks for it when memory does not come back."""

from __future__ import annotations

from pyvlm.server.log import log_event
from pyvlm.server.service import Service


def log_leases(service: Service) -> None:
    """Event loop's thread. A line with the sums, then one for each lease, the largest first."""
    ledger, engine = service.ledger, service.loaded_engine
    held: dict[str, object] = {
        "active": service.num_active,
        "ledger_bytes": ledger.used_bytes,
        "ledger_limit_bytes": ledger.limit_bytes,
    }
    if engine is not None:
        now = engine.stats()
        held |= {
            "preparing": now.num_preparing,
            "waiting": now.native.num_waiting,
            "running": now.native.num_running,
            "engine_leases": now.native.num_leases,
        }
    log_event("held", held)
    for owner, num_bytes in ledger.leases():
        if num_bytes:
            log_event("lease", {"kind": "ledger", "owner": owner, "bytes": num_bytes})
    for lease in () if engine is None else engine.leases():
        fields = {"owner": lease.owner, "state": lease.state, "bytes": lease.num_bytes}
        log_event("lease", {"kind": "patches", **fields, "age_s": round(lease.age_s, 3)})
