"""A page on this machine: access control, response headers, and the socket on which it is served."""
