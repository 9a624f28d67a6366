"""Tables measured on a real host, run row by row as programs, and how near the times come."""
