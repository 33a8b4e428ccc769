"""`python -m scalerl.cli`: the command where the console script is not on the path."""

from scalerl.cli import main

main()
