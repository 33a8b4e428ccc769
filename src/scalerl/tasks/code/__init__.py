"""Code problems: the formats in which others publish them, and the task that reads them."""
