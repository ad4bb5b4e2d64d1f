"""Run the command of `alpheus.cli` as `python -m alpheus`."""

from alpheus.cli import main

main()
