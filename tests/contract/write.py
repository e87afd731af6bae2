"""``make contract``: write anew what users have, for a diff to show what has changed."""

from __future__ import annotations

from tests.contract.subjects import all_lines, path_of, text_of


def main() -> None:
    """Write the file of each subject; names those that change."""
    for subject, lines in all_lines():
        path, text = path_of(subject), text_of(subject, lines)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"{path.name} is another one now")


if __name__ == "__main__":
    main()
