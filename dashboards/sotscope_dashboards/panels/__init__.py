"""Panels, one file each."""
