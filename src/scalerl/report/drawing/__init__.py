"""What the ways to draw a figure share."""
