"""The Kernel lab's script; what it shows is `app.kernel_lab`."""

from app.kernel_lab import show

show()
