"""The command line: `diffnsd demo`, `diffnsd identify`, `diffnsd simulate`."""

from ._app import app as app
