"""What there is to say about curves, as values first; then tables, figures and drawings of it."""
