"""The results service: REST, inference and page."""
