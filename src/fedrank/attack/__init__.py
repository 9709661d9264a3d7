"""WHO LIES, who listens: poisoned clicks and updates; what a message gives away."""
