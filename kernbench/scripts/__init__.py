"""Programs as they are: scripts, files with `import torch`, functions of a notebook."""
