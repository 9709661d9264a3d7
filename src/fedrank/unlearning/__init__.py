"""Unlearning: recorded history, methods and verification."""
