"""Machine files from tables that were measured on a host."""
