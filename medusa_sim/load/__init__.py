"""Requests over time: arrivals, an engine's scheduler, policies of speculation, goodput."""
