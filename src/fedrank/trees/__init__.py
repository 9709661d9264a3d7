"""Trees: boosters, selection, splits, merging, growing across clients; and the files of models of any kind."""
