"""Motions without contacts."""
