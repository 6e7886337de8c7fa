"""The results service: REST, inference and page."""

import stages  # noqa: F401  (its import makes Ctrl-C one line)
