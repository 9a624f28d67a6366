"""What ranks do together: where they meet, who waits for whom, how a spawn begins and ends."""
