"""Reading run folders: what came out, how sure that is, and three ways to show it."""
