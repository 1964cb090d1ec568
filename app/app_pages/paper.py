"""The paper page's script; what it shows is `app.paper`."""

from app.paper import show

show()
