"""What is said about a model: config.yaml, config.pbtxt, labels, and what they come to."""
