"""Repositories that are read over HTTP: buckets of Google Cloud Storage, containers of Azure, and files of web servers.

client        requests, tried again and gone on with, and what is wrong with answers, in our words
redirects     which redirects are followed
listing       listings that come in pages, and their bounds
gs            Google Cloud Storage
azure         Azure Blob Storage
credentials   what signs requests to both
"""
