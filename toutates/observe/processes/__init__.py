"""The server's processes, where there are several: what each reports, their sum, and what they use of the machine."""
