"""Settings of all tests."""

import signal

from hypothesis import settings

# a runner that was started in the background ignores these, and so would the servers under test
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# the machine may be shared and slow: what a property costs is bounded by its number of examples
settings.register_profile("project", deadline=None)
settings.load_profile("project")
