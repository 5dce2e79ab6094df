"""What type checkers say of the public types. mypy and pyright check these modules in `make check`; nothing runs them.

An expected error carries the ignore comments of both checkers, and each reports an ignore comment that ignores nothing.
"""
