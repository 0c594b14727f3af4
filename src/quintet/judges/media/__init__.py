"""The judges of each medium: one module for each room that has any, named after it."""
