"""The same federation between machines: sites that keep their data, and a coordinator that keeps none."""
