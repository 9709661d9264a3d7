"""Experiments: specifications (`spec`), execution (`runner`), reports (`report`), and a progress page (`watch`)."""
