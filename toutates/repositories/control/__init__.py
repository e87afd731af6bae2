"""Which models of the repositories are served, and when that changes.

model_control   polls, and requests to load and unload
first_look      the models that there are at the start
fetching        the models of the start made local, with progress in the log
passed_over     directories that are no models
modes           the values of --model-control-mode
"""
