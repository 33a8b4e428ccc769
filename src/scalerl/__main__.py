"""`python -m scalerl` is the command `scalerl`."""

from scalerl.cli import main

main()
