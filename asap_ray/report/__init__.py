"""What a person takes away from a run: tables, pictures, one page.

`files.write_report` writes the files of a run directory, `terminal.show` prints the answer.
"""
