"""The command line: `diffnsd demo`, `diffnsd identify`, `diffnsd simulate`, `diffnsd view`."""

from ._app import app as app
