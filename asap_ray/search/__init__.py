"""What is tried next: one ask-and-tell protocol for brains and black-box samplers, over one pool of plans."""
