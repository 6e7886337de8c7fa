"""State of readiness: no requests before the warm-up is over, nor once the service is told to end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Readiness:
    """State of one application, written by its start and its end."""

    is_warm: bool = False
    is_draining: bool = False
