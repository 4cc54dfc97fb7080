"""Import this before anything of Ryu.

Ryu 4.34 is of 2020 and imports a name that eventlet has dropped since; nothing here ever uses it.  And Mininet, where
it was imported, has replaced the class of all new loggers by one that swallows what is below its own level OUTPUT.
"""

from __future__ import annotations

import logging
import warnings

logging.setLoggerClass(logging.Logger)
warnings.filterwarnings("ignore", message="(?s).*Eventlet is deprecated")

import eventlet.wsgi  # noqa: E402

if not hasattr(eventlet.wsgi, "ALREADY_HANDLED"):
    eventlet.wsgi.ALREADY_HANDLED = []
