"""A small character model on text that every Python carries: something real to train anywhere."""
