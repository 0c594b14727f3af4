"""Reading and writing of media files; sizes are checked before anything is decoded."""
