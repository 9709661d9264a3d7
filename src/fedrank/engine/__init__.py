"""Features, queries, trials and decisions for an existing search engine.

An engine answers the searches of an organisation. This package writes its input (feature sets, queries, a trial between
two models) and reads its output (logged features, events, decisions). It exchanges files and command lines only and
does not connect to an engine.
"""
