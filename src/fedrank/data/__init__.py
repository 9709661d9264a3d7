"""What is ranked: queries with their documents, features and grades; files, catalog and synthetic sets."""
