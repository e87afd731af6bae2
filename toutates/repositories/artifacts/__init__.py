"""Repositories that come as a whole: archives of web servers, and artifacts and images of OCI registries.

repository       what lies in one; the cache has its files
layout           which models its files make
store            files of archives, known by their content
spool            the contents of an archive, while its files go into the cache
archive          an archive behind a URL
oci              an artifact or image of a registry
manifests        what a registry says of it
registry_login   how registries are asked for a token, and with which password
"""
