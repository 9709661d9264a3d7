"""Whose engine: features, queries, trials and decisions for a search engine that is already there.

An engine answers the searches of an organisation. Here lies what goes into it (feature sets, queries, a trial between
two models) and what is read back from it (logged features, events, decisions). Nothing here speaks to an engine:
files and command lines go out, files come in.
"""
