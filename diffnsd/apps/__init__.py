"""Applications: the command line program `diffnsd`, and the tasks that it runs."""
