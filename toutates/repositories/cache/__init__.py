"""The cache of files from S3, which the servers of a host share."""
