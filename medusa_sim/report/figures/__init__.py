"""Charts drawn by matplotlib, for reports and files."""
