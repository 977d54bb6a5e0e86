"""gpushm in other people's programs: `transformers`, `vllm`, `sglang`, `lmcache` and `ray`.

Each is imported only where its framework is installed, and none is needed for gpushm itself.
docs/guides/python-integrations.md says what each does.
"""
