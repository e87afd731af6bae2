"""A repository in a local directory, and models whose files come with the request to load them."""
