"""Files from anybody: every reader meets thousands of mutated ones, and none of them may crash, hang or lie."""
