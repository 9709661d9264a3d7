"""FOLTR-Bench: frozen tasks, submissions, and a leaderboard of checked run folders."""
