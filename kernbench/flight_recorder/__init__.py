"""What ranks call together, as files that PyTorch's flight-recorder analyser reads."""
