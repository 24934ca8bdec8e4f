"""What runs inside kernels: Python 3.8 or newer and the standard library; nothing here imports the server half."""
