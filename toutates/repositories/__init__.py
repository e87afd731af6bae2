"""Where models come from, and which of them are served.

interface        what every repository can do
specification    what the operator asked for
opening          repositories from specifications; what must hold for the models of all of them
obtaining        a model made local, with its own configuration or another; what its files say
local/           a directory; files that come with a request to load them
s3/              a bucket: its listings, what its keys mean, and its downloads
web/             buckets of Google Cloud Storage and Azure, and web servers, by HTTP
artifacts/       archives of web servers, artifacts and images of OCI registries
unpacking        files of an archive, which may come from anybody; hostile ones are refused
hub/             a model of the Hugging Face Hub, by S3's repository with another store of objects
cache/           directories of files that were downloaded, shared by the servers of a host
control/         which models are served: the first look at the start, polls, requests
"""
