"""`python -m alpheus`: the command of `cli`."""

from alpheus.cli import main

main()
