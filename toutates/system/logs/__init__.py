"""The log: what is shown, how a line looks, and how it gets out without holding up anybody.

    logging, any thread
      ─▶ LogControl      levels per area, changed while the server runs
      ─▶ Repeats         the first lines of a kind in a period, then how many more there were
      ─▶ RecentWarnings  the last ones, for the status page
      ─▶ LogFormatter    text or JSON
      ─▶ LogOutput       a bounded queue; one thread writes, and counts what did not fit or could not be written

The access log (``toutates.observe.access_log``) is a chore of the thread of ``LogOutput``.

Code that has something to say calls ``logging.getLogger(__name__)``, and knows nothing of this package; fields for
machines go into ``extra``.
"""
