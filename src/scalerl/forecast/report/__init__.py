"""A report on runs or logs: one HTML page, Markdown with pictures, or JSON."""
