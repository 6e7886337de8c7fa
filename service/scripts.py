"""The chart scripts, bundled once out of the installed vl-convert-python."""

from __future__ import annotations

import subprocess
import sys
import threading
from importlib.metadata import version

BUNDLE = "import sys, vl_convert; sys.stdout.buffer.write(vl_convert.javascript_bundle().encode())"


class ChartScripts:
    """Bundling takes seconds and holds Python's lock all the while, hence a process of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._vega: bytes | None = None

    @property
    def version(self) -> str:
        """Changes with the bundle, so that browsers may keep it for long."""
        return version("vl-convert-python")

    def vega(self) -> bytes:
        """Vega, Vega-Lite and vega-embed as one script."""
        with self._lock:
            if self._vega is None:
                self._vega = subprocess.run([sys.executable, "-c", BUNDLE], check=True, capture_output=True).stdout
            return self._vega

    def warm_up(self) -> None:
        """Bundle in the background, before the first visitor asks."""
        threading.Thread(target=self.vega, daemon=True).start()
