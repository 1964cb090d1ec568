"""The Simulate page's script; what it shows is `app.simulate`."""

from app.simulate import show

show()
