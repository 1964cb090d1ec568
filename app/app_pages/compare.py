"""The Compare page's script; what it shows is `app.compare`."""

from app.compare import show

show()
