"""Where models come from: local directories and S3, behind one interface, and the cache that makes S3's files local.

interface        what every repository can do            specification    what the operator asked for
local            a directory                             opening          from the one to the other; all of them at once
obtaining        a model made local, with its own configuration or another
looking          what its files say then
s3               a bucket: lists, fetches                s3_keys          from keys to models and their files
s3_client        boto3, its errors in our words          s3_download      ranges, in parallel, into the cache
cache            files by what they hold, and links to them for each model; shared by the servers of a host
file_lock        how these keep out of each other's way
"""
