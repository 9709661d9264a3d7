"""Experiments: specifications (`spec`), running them (`runner`), reports (`report`), and a page that shows progress."""
