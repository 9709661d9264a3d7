"""What a question says: a TOML file is read once, into experiments whose methods are built."""
