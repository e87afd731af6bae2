"""The log: which lines are shown, how they look, and how they are written without delaying any other thread.

    logging, any thread
      ─▶ LogControl      levels per area, which can change while the server runs
      ─▶ Repeats         passes the first lines of a kind in a period, then says how many more came
      ─▶ RecentWarnings  keeps the last warnings for the status page
      ─▶ LogFormatter    text or JSON
      ─▶ LogOutput       a bounded queue; one thread writes it, and counts lines that are lost

The access log (``toutates.observe.access_log``) is a chore of the thread of ``LogOutput``.

Other code logs by ``logging.getLogger(__name__)`` and does not import this package; fields for programs go into
``extra``.
"""
