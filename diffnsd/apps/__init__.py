"""Applications: the command line `diffnsd`, and the jobs that it runs."""
