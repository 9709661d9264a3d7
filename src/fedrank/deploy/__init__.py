"""Federated learning between machines: sites keep their data, and a coordinator combines their messages."""
