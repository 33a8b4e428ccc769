"""Two curves side by side."""
