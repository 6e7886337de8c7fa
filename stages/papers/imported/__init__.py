"""No paper: models of other packages and of a user's own files, which parameters name by `package.module:name`."""

from stages.papers.imported.model import ImportedModel

__all__ = ["ImportedModel"]
