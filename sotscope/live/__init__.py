"""Decoding in a process of its own, told what to do over a pipe. Only ``engine`` imports torch."""
