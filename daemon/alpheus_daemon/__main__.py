"""`python -m alpheus_daemon`: the command of `main`."""

from alpheus_daemon.main import main

raise SystemExit(main())
