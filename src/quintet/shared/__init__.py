"""What two or more rooms share and that knows the engine: it stands between them and nn, media."""
