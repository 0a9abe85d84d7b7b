"""The work through the server, as streams over loopback."""
