"""Trainings that need no code from the user."""
