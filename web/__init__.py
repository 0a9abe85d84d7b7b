"""What the server and the router have in common as HTTP servers."""
