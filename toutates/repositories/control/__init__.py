"""Which models of the repositories are served, and when that changes.

model_control   polls, and requests to load and unload
view            a look into the repositories: the models that they have now
load_request    what a request to load a model brings
first_look      the models that there are at the start
waiting         what the start waits for
fetching        the models of the start made local, with progress in the log
passed_over     directories that are no models
threads         how repositories, which block, are asked
modes           the values of --model-control-mode
"""
