"""Built-in experiments, and the papers that they reproduce."""
