"""WHO GOES: recorded history, methods, verification."""
