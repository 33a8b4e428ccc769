"""What a command found, as values; and the terminal, JSON, pictures and the page that show it."""
