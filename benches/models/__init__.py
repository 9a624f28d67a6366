"""What the benches share that run models split over ranks."""
