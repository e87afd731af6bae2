"""A repository in a bucket.

repository   scans the bucket, and brings the files of models into the cache
store        what it needs of a service of objects
client       boto3, and its errors in our words
keys         from keys to models, versions and files
download     objects into the cache
listings     what S3 listed last, on disk
misplaced    what a prefix is that is no model repository
"""
