"""What is served: the repository, each version's settings and signature, and the manager that loads them."""
