"""Resources and durations: engines of a PE, paths, queues, shared links, library kernels."""
