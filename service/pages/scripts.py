"""The chart scripts, bundled once from the installed vl-convert-python."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

from starlette.concurrency import run_in_threadpool

from service.slots import Slots

BUNDLE = "import sys, vl_convert; sys.stdout.buffer.write(vl_convert.javascript_bundle().encode())"


class ChartScripts:
    """Bundling takes seconds and holds Python's lock throughout, hence a separate process and a file in `cache`.

    None is `claimcheck` in the user's cache folder, which nobody else can write to.
    """

    def __init__(self, cache: Path | None = None) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        self._vega: bytes | None = None
        self._slots = Slots("bundling the chart scripts", 1, max_waiting=500, seconds=60)

    @property
    def version(self) -> str:
        """Changes with the bundle, so that browsers may keep it for long."""
        return version("vl-convert-python")

    def vega(self) -> bytes:
        """Vega, Vega-Lite and vega-embed as one script."""
        with self._lock:
            if self._vega is None:
                self._vega = self._read() or self._bundle()
            return self._vega

    @cached_property
    def packed(self) -> bytes:
        """`vega` as gzip, made once and smaller than what is packed for each answer."""
        return gzip.compress(self.vega(), 9, mtime=0)

    async def sent(self, *, is_packed: bool = False) -> bytes:
        """As `vega` or `packed`; of many who ask while it is bundled, only one holds a thread.

        Raises:
            Busy: it isn't bundled in time.
        """
        if self._vega is None or (is_packed and "packed" not in vars(self)):
            async with self._slots.turn():
                await run_in_threadpool(lambda: self.packed if is_packed else self.vega())
        return self.packed if is_packed else self.vega()

    def _read(self) -> bytes | None:
        with suppress(OSError, RuntimeError):
            return self._file().read_bytes()
        return None

    def _bundle(self) -> bytes:
        script = subprocess.run([sys.executable, "-c", BUNDLE], check=True, capture_output=True).stdout
        with suppress(OSError, RuntimeError):  # an unwritable home costs the next start some seconds
            file = self._file()
            file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as partial:
                partial.write(script)
            os.replace(partial.name, file)
        return script

    def _file(self) -> Path:
        """The file, named after the version; RuntimeError if the user has no home."""
        folder = self._cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "claimcheck"
        return folder / f"vega-{self.version}.js"

    def warm_up(self) -> None:
        """Bundle in the background, before the first visitor asks."""
        threading.Thread(target=self.vega, daemon=True).start()
