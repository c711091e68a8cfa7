"""The side of Halimede's Python backend that runs inside the interpreter. Models see `triton_python_backend_utils`."""
