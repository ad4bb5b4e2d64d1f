"""`python -m alpheus_daemon`: the command of `main`."""

import signal

if __name__ == "__main__":
    # `main` ignores SIGHUP, too, but importing it takes a second.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    from alpheus_daemon.main import main

    raise SystemExit(main())
