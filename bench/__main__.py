"""The command line of ``python -m bench``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bench.options import Options
from bench.report import markdown, report_command
from bench.results import Results, utc_now

_INTERRUPTED = 130


def main(arguments: Sequence[str]) -> int:
    """Measure, or report what was measured; returns the exit status."""
    if arguments and arguments[0] == "report":
        return report_command(arguments[1:])
    from bench.session import Session  # needs the clients' packages, which a report does not

    options = Options.parse(arguments)
    path = options.results / f"{options.name}.json"
    results = Results(options.name, started=utc_now())
    status = 0
    try:
        Session(options, results, path).run()
        results.finished = utc_now()
    except KeyboardInterrupt:
        print("interrupted; this is what there is", file=sys.stderr)
        status = _INTERRUPTED
    finally:
        results.save(path)
    text = markdown(results)
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    print(f"All figures: {path}; `python -m bench report {path}` puts them into docs/measurements.md")
    if status == 0 and (results.failures or not results.has_figures):
        status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
