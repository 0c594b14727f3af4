"""Code shared by rooms that needs the engine; nn and media hold what does not."""
