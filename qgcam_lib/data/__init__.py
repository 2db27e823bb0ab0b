"""Examples from official files, a module or folder a format, and the loop that asks a model about pictures."""
