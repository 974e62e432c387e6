"""Skill folders like those people have, made for the tests."""

from __future__ import annotations

from pathlib import Path

BODY = """\
# PDF forms

Fill `${FIELD}` with `{{ value }}`; a run costs $5 and `$HOME/bin` must be on the path.
See [forms](references/forms.md).

```sh
python scripts/fill.py "$1" --id ${id:-none}   # $$ is the shell's pid
```

---

JSX: `<a key={`${id}`}>`."""

PDF = {
    "pdf/SKILL.md": f"""\
---
name: pdf
description: >-
  Fill and read PDF forms. Use it when a ${{file}} ends
  in .pdf: costs $5.
license: Apache-2.0
metadata:
  author: example
  version: "1.0"
allowed-tools: Bash(python:*) Read
---

{BODY}
""",
    "pdf/references/forms.md": "# Forms\n\nHow fields are named: `${name}`.\n\nLong list.",
    "pdf/examples/invoice.md": "---\nsummary: 'One invoice: filled'\n---\n\nTotal: $12.",
    "pdf/scripts/fill.py": "print('filled')\n",
    "pdf/assets/empty.md": "A template, not a page.",
    "pdf/LICENSE.txt": "Apache",
}
TRIAGE = {
    "triage/SKILL.md": "---\nname: triage\ndescription: Sort incidents by severity.\n---\n\nSort them.",
}


def write(folder: Path, contents: dict[str, str]) -> Path:
    for name, text in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def read(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}
