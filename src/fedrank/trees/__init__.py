"""Forests: boosters, selection, splits, merging, growing together; and the files of models of any kind."""
