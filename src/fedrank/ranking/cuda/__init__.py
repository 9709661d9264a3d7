"""A round on a graphics card: the compiled loops' twins in CUDA, which give the same bits."""
