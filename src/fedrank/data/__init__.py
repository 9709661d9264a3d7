"""Ranking data: queries with their documents, features and relevance labels; files, catalog and synthetic sets."""
