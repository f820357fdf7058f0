"""The terminal interface: screens, widgets, presentation."""
